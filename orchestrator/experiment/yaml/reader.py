"""Read YAML into plain data with the location of every key."""

import re
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from orchestrator.errors import ConfigError, Problem, did_you_mean, shorten
from orchestrator.experiment.yaml.dialect import (
    CONTROL,
    INTEGERS,
    NO_CHARACTER,
    SCALARS,
    TAG,
    FastYamlLoader,
    YamlLoader,
    parse_number,
)
from orchestrator.experiment.yaml.document import Document, Location, join
from orchestrator.experiment.yaml.source import MAX_DEPTH

MAX_BYTES = 512 * 1024
"""Size limit of an experiment file; also the limit in characters once its aliases are expanded."""
_HINTS = {
    "'\\t'": "use spaces instead of tabs",
    "mapping values": "check the indentation of this line, or put text that contains `: ` in quotes",
    "expected <block end>": "check the indentation of this line",
}
"""What to do about a syntax error, by words of PyYAML."""
_TOO_DEEP = f"is nested too deeply: at most {MAX_DEPTH} levels are allowed"


def read_yaml(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping, or raise ConfigError."""
    try:
        text = _read_text(path)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
    except FileNotFoundError:
        raise ConfigError([_explain_missing_file(path)]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError as error:
        reason = str(error)
    else:
        return parse_yaml(text, str(path))
    raise ConfigError([Problem("", reason, str(path))])


def _explain_missing_file(path: Path) -> Problem:
    if path.is_symlink():
        return Problem("", "is a link to a file that does not exist", str(path))
    files = path.parent.glob("*") if path.parent.is_dir() else ()
    names = [file.name for file in files if file.suffix in (".yaml", ".yml")]
    nearest = did_you_mean(path.name, names)
    return Problem("", "does not exist", str(path), suggestion=nearest)


def _read_text(path: Path) -> str:
    stat = path.stat()
    if path.suffix == ".py":
        raise ValueError("must be an experiment file (YAML), got Python code")
    if not S_ISREG(stat.st_mode):  # a device or a pipe might never end
        kind = "folder" if path.is_dir() else "device or a pipe"
        raise ValueError(f"must be an experiment file (YAML), got a {kind}")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = f"{max(stat.st_size, len(content)):,} bytes, at most {MAX_BYTES:,} are allowed"
        raise ValueError(f"has {size}; pass large data to the task as a file")
    return content.decode("utf-8-sig")


def parse_yaml(text: str, file: str) -> Document:
    """Parse YAML text whose top level is a mapping.

    Raises ConfigError. `file` names it in errors.
    """
    value, document = parse_value(text, file)
    if not isinstance(value, dict):
        shown = "nothing" if value is None else shorten(repr(value))
        raise ConfigError(
            [Problem("", f"must be a mapping of keys to values, got {shown}", file, 1)]
        )
    document.data = value
    return document


def parse_value(text: str, file: str, *, fast: bool = False) -> tuple[Any, Document]:
    """Return any YAML value, and a document with its locations and problems.

    Raises ConfigError for a syntax error.
    """
    document = Document({}, {"": Location(file, 1)})
    try:
        node = (FastYamlLoader if fast else YamlLoader)(text).get_single_node()
        if node is None:
            return None, document
        reader = _NodeReader(document, file, max(MAX_BYTES, len(text)))
        return reader.read(node, "", ()), document
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, file, 1)]) from None
    # PyYAML makes numbers of \U and %YAML without looking.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError([_explain_syntax(error, file)]) from None


def _explain_syntax(error: Exception, file: str) -> Problem:
    """Return what PyYAML says of a syntax error, in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or ""
    context = getattr(error, "context", None) or ""
    is_continued = problem.startswith("but ")
    reason = f"{context}, {problem}" if is_continued else f"{problem} {context}".strip()
    reason = reason or " ".join(str(error).split())

    start = getattr(error, "context_mark", None)
    if mark and start and start.line < mark.line and not is_continued:
        reason += f" that begins on line {start.line + 1}"
    hint = next((hint for words, hint in _HINTS.items() if words in reason), None)
    return Problem("", f"invalid YAML: {reason}", file, mark.line + 1 if mark else None, hint)


def load_yaml(text: str, file: str) -> Any:
    """Return the data of text that `dump_yaml` wrote and somebody may have edited.

    Raises ConfigError.
    """
    data, document = parse_value(text, file, fast=True)
    if document.problems:
        raise ConfigError(document.problems)
    return data


class _NodeReader:
    """Reader of YAML nodes as plain data, which adds locations and problems to the document."""

    def __init__(self, document: Document, file: str, max_characters: int) -> None:
        self.document = document
        self.file = file
        self.max_characters = max_characters
        self.remaining = max_characters

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
        if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
            return self.read_mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
            return [
                self.read_child(child, join(path, index), parents)
                for index, child in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode):
            return self.read_scalar(node, path)
        return self.report(node, path, _describe_forbidden_tag(node))

    def read_child(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]) -> Any:
        self.document.locations[path] = self.locate(node)
        return self.read(node, path, parents)

    def read_mapping(
        self, node: yaml.MappingNode, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own: dict[str, yaml.Node] = {}
        for key, child in sorted(node.value, key=lambda pair: pair[0].tag != TAG + "merge"):
            if key.tag == TAG + "merge" and key.value == "<<":
                data.update(self.read_merged(child, path, parents))
            elif not isinstance(key, yaml.ScalarNode):
                self.report(
                    key, path, "has a key that is a list or a mapping; keys must be strings"
                )
            elif CONTROL.search(key.value):
                self.report(key, path, f"has a key with control characters: {_shorten(key.value)}")
            elif key.value in own:
                first = self.locate(own[key.value]).line
                self.report(
                    key, join(path, key.value), f"duplicate key; first defined on line {first}"
                )
            else:
                inner = join(path, key.value)
                if reason := _describe_wrong_tag(key):
                    self.report(key, inner, f"the key {reason}")
                own[key.value] = key
                self.document.locations[inner] = self.locate(key)
                data[key.value] = self.read(child, inner, parents)
        return data

    def read_merged(
        self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        """Return what `<<: *name` or `<<: [*name, *other]` adds; the first mapping wins."""
        data: dict[str, Any] = {}
        for child in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.read(child, path, parents)
            if isinstance(value, dict):
                data.update(value)
            else:
                self.report(child, path, "merges (<<) a value that is not a mapping")
        return data

    def read_scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        if reason := _describe_wrong_tag(node):
            return self.report(node, path, reason)
        kind = node.tag.removeprefix(TAG)
        if kind in ("str", "merge"):
            if NO_CHARACTER.search(node.value):
                return self.report(
                    node,
                    path,
                    f"contains a character that cannot be encoded: {_shorten(node.value)}",
                )
            return node.value
        if kind == "null":
            return None
        if kind == "bool":
            return node.value.lower() == "true"
        if kind == "float" and node.value.lower() == ".nan":  # no comparison would refuse it
            return self.report(node, path, "cannot be NaN in a file; put quotes around text")
        with suppress(ValueError):  # thousands of digits
            number = parse_number(node.value)
            if isinstance(number, float) or number in INTEGERS:
                return number
        self.report(node, path, f"integers must fit in 64 bits, got {_shorten(node.value)}")
        return 1  # so that no other check refuses it too

    def report(self, node: yaml.Node, path: str, message: str) -> None:
        self.document.problems.append(Problem(path, message, *self.locate(node)))

    def locate(self, node: yaml.Node) -> Location:
        return Location(self.file, node.start_mark.line + 1)


def _describe_wrong_tag(node: yaml.ScalarNode) -> str:
    """Return what is wrong with the tag of a key or a value; empty if nothing is."""
    kind = node.tag.removeprefix(TAG)
    if kind == "str":
        return ""
    if kind not in SCALARS:
        return _describe_forbidden_tag(node)
    if not re.fullmatch(SCALARS[kind], node.value):
        return f"is not a valid {kind}: {_shorten(node.value)}"
    return ""


def _describe_forbidden_tag(node: yaml.Node) -> str:
    tag = shorten(node.tag.replace(TAG, "!!"))
    return f"has the tag {tag}, which is not allowed; use plain values"


def _shorten(text: str) -> str:
    return repr(shorten(text))
