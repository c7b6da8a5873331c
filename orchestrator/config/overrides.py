"""Overrides: `optimizer.lr=0.05` on the command line, laid over what the file says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.reader import Document, Place, parse_value
from orchestrator.errors import ConfigError, Problem

_KEY = re.compile(r"^[\w/-]+(\.[\w/-]+)*$")


def apply_overrides(document: Document, overrides: Iterable[str]) -> None:
    """Sets each `dotted.path=value`, the value being YAML; what cannot be set becomes a problem of the document."""
    for override in overrides:
        where = f"override '{override}'"
        try:
            _apply(document, override, where)
        except ConfigError as error:
            document.problems.extend(replace(problem, file=where, line=None) for problem in error.problems)


def _apply(document: Document, override: str, where: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not _KEY.match(path):
        raise ConfigError([Problem("", "is no override; write key=value, such as optimizer.lr=0.05", where)])
    value, parsed = parse_value(text, where)
    document.problems.extend(replace(problem, path=path, line=None) for problem in parsed.problems)
    set_path(document.data, path, value)
    document.forget(path)
    document.places[path] = Place(where)
    for parent in _parents(path):
        document.places.setdefault(parent, Place(where))


def _parents(path: str) -> list[str]:
    keys = path.split(".")
    return [".".join(keys[:count]) for count in range(1, len(keys))]


def split_path(path: str) -> list[str]:
    """The keys of a dotted path; what a sweep's space is keyed by is a dotted path itself."""
    keys = path.split(".")
    return [*keys[:2], ".".join(keys[2:])] if keys[:2] == ["sweep", "space"] and len(keys) > 2 else keys


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value at a dotted path, making mappings where there is nothing yet, or where something was switched off
    (null, false) or on (true); raises ConfigError where the path leads through another value."""
    *parents, last = split_path(path)
    for depth, key in enumerate(parents):
        inner = data.get(key)
        if inner is None or isinstance(inner, bool):
            inner = data[key] = {}
        if not isinstance(inner, dict):
            raise ConfigError([_no_way(path, parents[: depth + 1], inner)])
        data = inner
    data[last] = value


def _no_way(path: str, parents: Sequence[str], found: Any) -> Problem:
    return Problem(path, f"cannot be set: {'.'.join(parents)} is {found!r}, not a mapping")
