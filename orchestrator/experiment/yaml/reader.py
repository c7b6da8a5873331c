"""Read YAML into plain data with the location of every key, and write it back so that it reads the
same."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import ConfigError, Problem, shorten
from orchestrator.experiment.yaml.source import MAX_DEPTH

MAX_BYTES = 512 * 1024
"""Size limit of an experiment file; also the limit in characters once its aliases are expanded."""
_INTEGERS = range(-(2**63), 2**64)
_TOO_DEEP = f"is nested too deeply: at most {MAX_DEPTH} levels are allowed"


class Location(NamedTuple):
    """File and line of a key, or the override that set it."""

    file: str
    line: int | None = None


@dataclass
class Document:
    """Plain data, the location of each dotted path, and the problems of the text itself."""

    data: dict[str, Any]
    locations: dict[str, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    """The overrides, as locations quote them."""

    def find_location(self, path: str) -> Location | None:
        """Return the location of a path, or of its nearest parent that has one."""
        while path and path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations.get(path)

    def locate(self, problem: Problem) -> Problem:
        """Add file and line to a problem that has none, where they are known."""
        location = self.find_location(problem.path)
        return (
            problem
            if problem.file or location is None
            else replace(problem, file=location.file, line=location.line)
        )

    def sort(self, problems: Iterable[Problem]) -> list[Problem]:
        """Locate problems and sort them: by file and line, then those of overrides in the order
        written."""
        order = {where: number for number, where in enumerate(self.overrides, 1)}
        located = map(self.locate, problems)
        return sorted(
            located,
            key=lambda each: (order.get(each.file or "", 0), each.file or "", each.line or 0),
        )

    def forget(self, paths: Collection[str]) -> None:
        """Drop the locations of `paths` and of everything below them."""
        self.locations = {
            key: location
            for key, location in self.locations.items()
            if not any(path in paths for path in list_prefixes(key))
        }


def join(path: str, key: object) -> str:
    """Append a key to a dotted path."""
    return f"{path}.{key}" if path else str(key)


def list_prefixes(path: str) -> Iterator[str]:
    """Iterate over the prefixes of a dotted path, the shortest first, the path itself last."""
    return accumulate(path.split("."), join)


def read_yaml(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping, or raise ConfigError."""
    try:
        text = _read_text(path)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError as error:
        reason = str(error)
    else:
        return parse_yaml(text, str(path))
    raise ConfigError([Problem("", reason, str(path))])


def _read_text(path: Path) -> str:
    stat = path.stat()
    if path.suffix == ".py":
        raise ValueError("must be an experiment file (YAML), got Python code")
    if not S_ISREG(stat.st_mode):  # a device or a pipe might never end
        raise ValueError(
            f"must be an experiment file (YAML), got a {'folder' if path.is_dir() else 'device or a pipe'}"
        )
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = max(stat.st_size, len(content))
        raise ValueError(
            f"has {size:,} bytes, at most {MAX_BYTES:,} are allowed; pass large data to the task as a file"
        )
    return content.decode("utf-8-sig")


def parse_yaml(text: str, file: str) -> Document:
    """Parse YAML text whose top level is a mapping; raise ConfigError. `file` names it in
    errors."""
    value, document = parse_value(text, file)
    if not isinstance(value, dict):
        shown = "nothing" if value is None else shorten(repr(value))
        raise ConfigError(
            [Problem("", f"must be a mapping of keys to values, got {shown}", file, 1)]
        )
    document.data = value
    return document


def parse_value(text: str, file: str, *, fast: bool = False) -> tuple[Any, Document]:
    """Return any YAML value, and a document with its locations and problems; raise ConfigError for
    a syntax error."""
    document = Document({}, {"": Location(file, 1)})
    try:
        node = (_FastLoader if fast else _Loader)(text).get_single_node()
        return _NodeReader(document, file, max(MAX_BYTES, len(text))).read(
            node, "", ()
        ) if node else None, document
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, file, 1)]) from None
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
    ) as error:  # PyYAML makes numbers of \U and %YAML without looking
        mark = getattr(error, "problem_mark", None)
        problem, context = (getattr(error, name, None) or "" for name in ("problem", "context"))
        is_continued = problem.startswith("but ")
        reason = f"{context}, {problem}" if is_continued else f"{problem} {context}".strip()
        reason = reason or " ".join(str(error).split())
        line = mark.line + 1 if mark else None
        start = getattr(error, "context_mark", None)
        if mark and start and start.line < mark.line and not is_continued:
            reason += f" that begins on line {start.line + 1}"
        hint = "use spaces instead of tabs" if "'\\t'" in reason else None
        raise ConfigError([Problem("", f"invalid YAML: {reason}", file, line, hint)]) from None


def load_yaml(text: str, file: str) -> Any:
    """Return the data of text that `dump_yaml` wrote and somebody may have edited; raise
    ConfigError."""
    data, document = parse_value(text, file, fast=True)
    if document.problems:
        raise ConfigError(document.problems)
    return data


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML text that `parse_yaml` reads as the same data, also after a terminal has escaped
    control characters.

    PyYAML leaves some invisible characters as they are. They stand only in double quotes here,
    where an escape means the same character.
    """
    text = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "".join(map(_escape_invisible, text)) if _has_invisible(text) else text


def _has_invisible(text: str) -> bool:
    return not text.replace("\n", "").replace("\t", "").isprintable()


def _escape_invisible(character: str) -> str:
    return character.encode("unicode_escape").decode() if _has_invisible(character) else character


# YAML 1.2's core schema rather than PyYAML's 1.1, so that `1e-3` is a number, and `on`, `1:30` and
# `2024-01-01` are text.
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
    "merge": r"<<",
}
_TAG = "tag:yaml.org,2002:"
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""Characters that file names cannot have or that UTF-8 cannot encode."""
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with other rules for scalars."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same rules by the parser in C, five times as fast and with worse error messages."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


# PyYAML's dumper in C is four times as fast.
class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A dumper that quotes text which this reader, or one of YAML 1.1, would take for something
    else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Quote text with invisible characters twice, so that they can be escaped."""
        style = '"' if _has_invisible(text) else None
        node: yaml.Node = self.represent_scalar(_TAG + "str", text, style=style)
        return node


_Dumper.add_representer(str, _Dumper.represent_text)

for _name, _pattern in _SCALARS.items():
    for _side in (_Loader, _FastLoader, _Dumper):
        _side.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


def _parse_number(text: str) -> int | float:
    text = text.replace("_", "").lower()
    if text[:2] in ("0o", "0x"):
        return int(text, 0)
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text.replace(".inf", "inf"))


def explain_unwritable(value: Any) -> str | None:
    """Return why this reader would refuse plain data that was written to a file, if so."""
    if isinstance(value, Mapping):
        has_control = any(isinstance(key, str) and _CONTROL.search(key) for key in value)
        return (
            "has a key with control characters"
            if has_control
            else explain_unwritable([*value.values()])
        )
    if isinstance(value, list | tuple):
        return next(filter(None, map(explain_unwritable, value)), None)
    if isinstance(value, str) and _NO_CHARACTER.search(value):
        return "contains a character that cannot be encoded"
    if isinstance(value, int) and value not in _INTEGERS:
        return "integers must fit in 64 bits"
    return "cannot be NaN in a file" if isinstance(value, float) and math.isnan(value) else None


class _NodeReader:
    """Reader of YAML nodes as plain data, which adds locations and problems to the document."""

    def __init__(self, document: Document, file: str, max_characters: int) -> None:
        self.document = document
        self.file = file
        self.remaining = self.max_characters = max_characters

    def read(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> Any:
        # The least that the node takes as text: a scalar and a separator, or a pair of brackets.
        self.remaining -= len(node.value) + 1 if isinstance(node, yaml.ScalarNode) else 2
        if self.remaining < 0:
            message = (
                f"has more than {self.max_characters:,} characters once its aliases are expanded"
            )
            raise ConfigError([Problem("", message, *self.locate(node))])
        if any(parent is node for parent in parents):
            return self.report(
                node, path, "contains itself: an alias must not refer to its own parent"
            )
        if len(parents) >= MAX_DEPTH:
            raise ConfigError([Problem("", _TOO_DEEP, *self.locate(node))])
        parents = (*parents, node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.read_mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [
                self.read_child(child, join(path, index), parents)
                for index, child in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode):
            return self.read_scalar(node, path)
        return self.report_tag(node, path)

    def read_child(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> Any:
        self.document.locations[path] = self.locate(node)
        return self.read(node, path, parents)

    def read_mapping(
        self, node: yaml.MappingNode, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own: dict[str, yaml.Node] = {}
        for key, child in sorted(node.value, key=lambda pair: pair[0].tag != _TAG + "merge"):
            if key.tag == _TAG + "merge":
                data.update(self.read_merged(child, path, parents))
            elif not isinstance(key, yaml.ScalarNode):
                self.report(
                    key, path, "has a key that is a list or a mapping; keys must be strings"
                )
            elif _CONTROL.search(key.value):
                self.report(key, path, f"has a key with control characters: {_shorten(key.value)}")
            elif key.value in own:
                first = self.locate(own[key.value]).line
                self.report(
                    key, join(path, key.value), f"duplicate key; first defined on line {first}"
                )
            else:
                inner = join(path, key.value)
                own[key.value] = key
                self.document.locations[inner] = self.locate(key)
                data[key.value] = self.read(child, inner, parents)
        return data

    def read_merged(
        self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        """Return what `<<: *name` or `<<: [*name, *other]` adds; earlier mappings win over later
        ones."""
        data: dict[str, Any] = {}
        for child in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.read(child, path, parents)
            if isinstance(value, dict):
                data.update(value)
            else:
                self.report(child, path, "merges (<<) a value that is not a mapping")
        return data

    def read_scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "merge"):
            if _NO_CHARACTER.search(node.value):
                return self.report(
                    node,
                    path,
                    f"contains a character that cannot be encoded: {_shorten(node.value)}",
                )
            return node.value
        if kind not in _SCALARS:
            return self.report_tag(node, path)
        if not re.fullmatch(_SCALARS[kind], node.value):
            return self.report(node, path, f"is not a valid {kind}: {_shorten(node.value)}")
        if kind == "null":
            return None
        if kind == "bool":
            return node.value.lower() == "true"
        if kind == "float" and node.value.lower() == ".nan":  # no comparison would refuse it
            return self.report(node, path, "cannot be NaN in a file; put quotes around text")
        with suppress(ValueError):  # thousands of digits
            number = _parse_number(node.value)
            if isinstance(number, float) or number in _INTEGERS:
                return number
        self.report(node, path, f"integers must fit in 64 bits, got {_shorten(node.value)}")
        return 1  # so that no other check refuses it too

    def report_tag(self, node: yaml.Node, path: str) -> None:
        tag = shorten(node.tag.replace(_TAG, "!!"))
        self.report(node, path, f"has the tag {tag}, which is not allowed; use plain values")

    def report(self, node: yaml.Node, path: str, message: str) -> None:
        self.document.problems.append(Problem(path, message, *self.locate(node)))

    def locate(self, node: yaml.Node) -> Location:
        return Location(self.file, node.start_mark.line + 1)


def _shorten(text: str) -> str:
    return repr(shorten(text))
