"""Reads YAML into plain data and remembers where everything stood; writes it back so that it reads the same."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import yaml
from yaml.reader import ReaderError

from orchestrator.config.text.bounds import DEEPEST, LARGEST, WHOLE_NUMBERS
from orchestrator.errors import ConfigError, Problem, shortened


class Origin(NamedTuple):
    """What a key comes from: a file and a line, or an override."""

    file: str
    line: int | None = None


@dataclass
class Document:
    """Plain data, the origin of each dotted path, and what was wrong with the text itself."""

    data: dict[str, Any]
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def origin(self, path: str) -> Origin | None:
        """What `path` comes from, or the nearest of its parents."""
        while path and path not in self.origins:
            path = path.rpartition(".")[0]
        return self.origins.get(path)

    def locate(self, problem: Problem) -> Problem:
        """The problem with its file and line, where it has none yet and they are known."""
        origin = self.origin(problem.path)
        return problem if problem.file or origin is None else replace(problem, file=origin.file, line=origin.line)

    def forget(self, paths: Collection[str]) -> None:
        """Drops the origins of `paths` and of all below them."""
        self.origins = {
            key: origin for key, origin in self.origins.items() if not any(path in paths for path in with_parents(key))
        }


def join(path: str, key: object) -> str:
    """A dotted path with one more part."""
    return f"{path}.{key}" if path else str(key)


def with_parents(path: str) -> Iterator[str]:
    """A dotted path's first part, its first two, and so on to the whole."""
    return accumulate(path.split("."), join)


def read_yaml(path: Path) -> Document:
    """Reads a YAML file whose top level is a mapping; raises ConfigError when there is no such file or no such YAML."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a file that people write. Raises ConfigError for one that is not there, too large, no UTF-8, or no
    file but a folder, a device or a pipe, which might never end."""
    try:
        found = path.stat()
        if not S_ISREG(found.st_mode):
            raise _unreadable(path, "is no file, but a folder, a device or a pipe")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            size = max(found.st_size, len(content))
            raise _unreadable(
                path,
                f"has {size:,} bytes, and may have {LARGEST:,}; give large data to the task as a file of its own",
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"is no UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8") from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name that no file can have
        raise _unreadable(path, f"cannot be read: {error}") from None


def _unreadable(path: Path, reason: str) -> ConfigError:
    return ConfigError([Problem("", reason, str(path))])


def parse_yaml(text: str, file: str) -> Document:
    """As `read_yaml`, for text that came from `file`."""
    value, document = parse_value(text, file)
    if not isinstance(value, dict):
        found = "nothing" if value is None else shortened(repr(value))
        raise ConfigError([Problem("", f"must hold keys and values, got {found}", file, 1)])
    document.data = value
    return document


def parse_value(text: str, file: str) -> tuple[Any, Document]:
    """Return any YAML value, and a document with its origins and problems.

    Raises ConfigError for a syntax error, and where aliases make the value large.
    """
    document = Document({}, {"": Origin(file, 1)})
    try:
        node = _Loader(text).get_single_node()
        return _Plain(document, file, max(LARGEST, len(text))).value(node, "", ()) if node else None, document
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, file, 1)]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([Problem("", f"is no YAML: {what}", file, line)]) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            [Problem("", f"is no YAML: the character {chr(error.character)!r} is not allowed", file, line)]
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # PyYAML makes numbers of \U and %YAML without looking
        raise ConfigError([Problem("", f"is no YAML: {' '.join(str(error).split())}", file)]) from None


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML text that `parse_yaml` reads as the same data."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# YAML 1.2's core schema rather than PyYAML's 1.1, so that `1e-3` is a number, and `on`, `1:30` and `2024-01-01` are
# text; `.nan` is text too, as no comparison refuses it.
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
    "merge": r"<<",
}
_TAG = "tag:yaml.org,2002:"
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""What no file name holds and no encoding writes."""


_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with other rules for scalars."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # in C where PyYAML has it, four times as fast
    """Quotes text that this reader or one of YAML 1.1 would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, _pattern in _SCALARS.items():
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


_TOO_DEEP = f"is nested too deeply: {DEEPEST} levels are allowed"


def _number(text: str) -> int | float:
    text = text.replace("_", "").lower()
    if text[:2] in ("0o", "0x"):
        return int(text, 0)
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text.replace(".inf", "inf"))


class _Plain:
    """Turns a node graph into plain data, and notes origins and problems in the document."""

    def __init__(self, document: Document, file: str, largest: int) -> None:
        self.document = document
        self.file = file
        self.left = self.largest = largest

    def value(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> Any:
        self.left -= max(1, len(node.value)) if isinstance(node, yaml.ScalarNode) else 1
        if self.left < 0:
            raise self.refusal(node, f"holds more than {self.largest:,} characters with its aliases written out")
        if any(parent is node for parent in parents):
            return self.problem(node, path, "contains itself; an alias must not point at what it stands in")
        if len(parents) >= DEEPEST:
            raise self.refusal(node, _TOO_DEEP)
        parents = (*parents, node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.item(child, join(path, index), parents) for index, child in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        return self.problem(node, path, f"has the tag {_short(node.tag)}, which is not allowed; write plain values")

    def item(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> Any:
        self.document.origins[path] = self.origin(node)
        return self.value(node, path, parents)

    def mapping(self, node: yaml.MappingNode, path: str, parents: tuple[yaml.Node, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own: dict[str, yaml.Node] = {}
        for key, child in sorted(node.value, key=lambda pair: pair[0].tag != _TAG + "merge"):
            if key.tag == _TAG + "merge":
                found.update(self.merged(child, path, parents))
                continue
            if not isinstance(key, yaml.ScalarNode):
                self.problem(key, path, "has a key that is no plain text")
                continue
            if _CONTROL.search(key.value):
                self.problem(key, path, f"has a key with control characters: {_shown(key.value)}")
                continue
            inner = join(path, key.value)
            if key.value in own:
                self.problem(key, inner, f"is given twice; first in line {self.origin(own[key.value]).line}")
                continue
            own[key.value] = key
            self.document.origins[inner] = self.origin(key)
            found[key.value] = self.value(child, inner, parents)
        return found

    def merged(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> dict[str, Any]:
        """What `<<: *name` or `<<: [*name, *other]` brings; earlier ones win over later ones."""
        found: dict[str, Any] = {}
        for child in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.value(child, path, parents)
            if isinstance(value, dict):
                found.update(value)
            else:
                self.problem(child, path, "merges (<<) something that is no mapping")
        return found

    def scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "merge"):
            return self.text(node, path)
        if kind not in _SCALARS:
            return self.problem(node, path, f"has the tag {_short(node.tag)}, which is not allowed; write plain values")
        if not re.fullmatch(_SCALARS[kind], node.value):
            return self.problem(node, path, f"is no {kind}: {_shown(node.value)}")
        if kind == "null":
            return None
        return node.value.lower() == "true" if kind == "bool" else self.number(node, path)

    def text(self, node: yaml.ScalarNode, path: str) -> Any:
        if _NO_CHARACTER.search(node.value):
            return self.problem(node, path, f"holds what is no character: {_shown(node.value)}")
        return node.value

    def number(self, node: yaml.ScalarNode, path: str) -> Any:
        try:
            number = _number(node.value)
        except ValueError:  # of thousands of digits
            return self.problem(
                node, path, f"is a number of {len(node.value):,} digits; whole numbers have 64 bits at most"
            )
        if isinstance(number, int) and number not in WHOLE_NUMBERS:
            return self.problem(node, path, f"is beyond 64 bits: {_shown(node.value)}")
        if isinstance(number, float) and math.isinf(number) and "inf" not in node.value.lower():
            return self.problem(
                node,
                path,
                f"is larger than any number here: {_shown(node.value)}; write .inf where it is meant to be infinite",
            )
        return number

    def problem(self, node: yaml.Node, path: str, message: str) -> None:
        self.document.problems.append(Problem(path, message, *self.origin(node)))

    def refusal(self, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError([Problem("", message, *self.origin(node))])

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self.file, node.start_mark.line + 1)


def _short(tag: str) -> str:
    return shortened(tag.replace(_TAG, "!!"))


def _shown(text: str) -> str:
    return repr(shortened(text))
