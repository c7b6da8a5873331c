"""Overrides: `optimizer.lr=0.05` on the command line, which go over what the file says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from orchestrator.config.text.reader import Document, Origin, parse_value, with_parents
from orchestrator.config.text.source import check_path
from orchestrator.errors import ConfigError, Problem, shortened

_KEY = re.compile(r"^[\w/-]+(\.[\w/-]+)*$")


def read_overrides(document: Document, overrides: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Path and value of each `dotted.path=value`, the value being YAML; what is none becomes a problem of the document.
    From then on their paths are the overrides' in the document's origins."""
    values = []
    for override in overrides:
        where = f"override '{shortened(override)}'"
        try:
            values.append(_read(document, override, where))
        except ConfigError as error:
            document.problems.extend(replace(problem, file=where, line=None) for problem in error.problems)
    return tuple(values)


def _read(document: Document, override: str, where: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not _KEY.match(path):
        raise ConfigError([Problem("", "is no override; write key=value, such as optimizer.lr=0.05", where)])
    check_path(path)
    value, parsed = parse_value(text, where)
    document.problems.extend(replace(problem, path=path, line=None) for problem in parsed.problems)
    document.forget({path})
    document.origins[path] = Origin(where)
    for parent in with_parents(path):
        document.origins.setdefault(parent, Origin(where))
    return path, value
