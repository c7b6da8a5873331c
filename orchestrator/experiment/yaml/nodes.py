"""YAML's nodes as plain data, with the location of every key."""

import re
from contextlib import suppress
from typing import Any

import yaml

from orchestrator.errors import ConfigError, Problem, shorten
from orchestrator.experiment.yaml.dialect import (
    CONTROL,
    INTEGERS,
    MAX_DEPTH,
    NO_CHARACTER,
    SCALARS,
    TAG,
    TOO_DEEP,
    parse_number,
)
from orchestrator.experiment.yaml.document import Document, Location
from orchestrator.experiment.yaml.dotted_paths import join


class NodeReader:
    """Reader of YAML nodes as plain data, which adds locations and problems to a document.

    Args:
        document: Gets the locations and the problems.
        file: Name of the file in the locations.
        max_characters: Limit of the text once its aliases are expanded.
    """

    def __init__(self, document: Document, file: str, max_characters: int) -> None:
        self._document = document
        self._file = file
        self._max_characters = max_characters
        self._remaining = max_characters

    def read(self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...] = ()) -> Any:
        """Return the plain data of a node, which is at a dotted path and inside its parents.

        A wrong value becomes a problem of the document, and null. Raises ConfigError for a text
        that is too long or too deep.
        """
        self._count_characters(node)
        if any(parent is node for parent in parents):
            self._report(node, path, "contains itself: an alias must not refer to its own parent")
            return None
        if len(parents) >= MAX_DEPTH:
            raise ConfigError([Problem("", TOO_DEEP, *self._locate(node))])

        parents = (*parents, node)
        if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
            return self._read_mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
            return self._read_list(node, path, parents)
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node, path)
        self._report(node, path, _describe_forbidden_tag(node))
        return None

    def _count_characters(self, node: yaml.Node) -> None:
        """Count the least that a node takes as text: a scalar and a separator, or two brackets."""
        self._remaining -= len(node.value) + 1 if isinstance(node, yaml.ScalarNode) else 2
        if self._remaining < 0:
            limit = f"{self._max_characters:,} characters"
            message = f"has more than {limit} once its aliases are expanded"
            raise ConfigError([Problem("", message, *self._locate(node))])

    def _read_list(
        self, node: yaml.SequenceNode, path: str, parents: tuple[yaml.Node, ...]
    ) -> list[Any]:
        items = []
        for index, child in enumerate(node.value):
            inner = join(path, index)
            self._document.locations[inner] = self._locate(child)
            items.append(self.read(child, inner, parents))
        return items

    def _read_mapping(
        self, node: yaml.MappingNode, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own: dict[str, yaml.Node] = {}
        # Merged keys come first, so that the mapping's own keys override them.
        for key, child in sorted(node.value, key=lambda pair: not _is_merge(pair[0])):
            if _is_merge(key):
                data.update(self._read_merged(child, path, parents))
            elif not isinstance(key, yaml.ScalarNode):
                message = "has a key that is a list or a mapping; keys must be strings"
                self._report(key, path, message)
            elif CONTROL.search(key.value):
                self._report(key, path, f"has a key with control characters: {_shorten(key.value)}")
            elif key.value in own:
                first = self._locate(own[key.value]).line
                message = f"duplicate key; first defined on line {first}"
                self._report(key, join(path, key.value), message)
            else:
                own[key.value] = key
                data[key.value] = self._read_entry(key, child, join(path, key.value), parents)
        return data

    def _read_entry(
        self, key: yaml.ScalarNode, child: yaml.Node, path: str, parents: tuple[yaml.Node, ...]
    ) -> Any:
        reason = _describe_wrong_tag(key)
        if reason:
            self._report(key, path, f"the key {reason}")
        self._document.locations[path] = self._locate(key)
        return self.read(child, path, parents)

    def _read_merged(
        self, node: yaml.Node, path: str, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        """Return what `<<: *name` or `<<: [*name, *other]` adds; the first mapping wins."""
        data: dict[str, Any] = {}
        children = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for child in reversed(children):
            value = self.read(child, path, parents)
            if isinstance(value, dict):
                data.update(value)
            else:
                self._report(child, path, "merges (<<) a value that is not a mapping")
        return data

    def _read_scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        reason = _describe_wrong_tag(node) or _describe_wrong_value(node)
        if reason:
            self._report(node, path, reason)
            return None
        match node.tag.removeprefix(TAG):
            case "null":
                return None
            case "bool":
                return node.value.lower() == "true"
            case "int" | "float":
                return self._read_number(node, path)
        return node.value

    def _read_number(self, node: yaml.ScalarNode, path: str) -> int | float:
        with suppress(ValueError):  # thousands of digits
            number = parse_number(node.value)
            if isinstance(number, float) or number in INTEGERS:
                return number
        self._report(node, path, f"integers must fit in 64 bits, got {_shorten(node.value)}")
        return 1  # so that no other check refuses it too

    def _report(self, node: yaml.Node, path: str, message: str) -> None:
        self._document.problems.append(Problem(path, message, *self._locate(node)))

    def _locate(self, node: yaml.Node) -> Location:
        return Location(self._file, node.start_mark.line + 1)


def _is_merge(key: yaml.Node) -> bool:
    return bool(key.tag == TAG + "merge" and key.value == "<<")


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


def _describe_wrong_value(node: yaml.ScalarNode) -> str:
    """Return why no file may have a value of the right tag; empty if it may."""
    kind = node.tag.removeprefix(TAG)
    if kind in ("str", "merge") and NO_CHARACTER.search(node.value):
        return f"contains a character that cannot be encoded: {_shorten(node.value)}"
    if kind == "float" and node.value.lower() == ".nan":  # no comparison would refuse it
        return "cannot be NaN in a file; put quotes around text"
    return ""


def _describe_forbidden_tag(node: yaml.Node) -> str:
    tag = shorten(node.tag.replace(TAG, "!!"))
    return f"has the tag {tag}, which is not allowed; use plain values"


def _shorten(text: str) -> str:
    return repr(shorten(text))
