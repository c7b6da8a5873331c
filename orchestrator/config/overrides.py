"""Overrides: `optimizer.lr=0.05` on the command line, which go over what the file says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from orchestrator.config.reader import Document, Origin, join, parse_value
from orchestrator.errors import ConfigError, Problem

_KEY = re.compile(r"^[\w/-]+(\.[\w/-]+)*$")


def read_overrides(document: Document, overrides: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Path and value of each `dotted.path=value`, the value being YAML; what is none becomes a problem of the document.
    From then on their paths are the overrides' in the document's origins."""
    values = []
    for override in overrides:
        where = f"override '{override}'"
        try:
            values.append(_read(document, override, where))
        except ConfigError as error:
            document.problems.extend(replace(problem, file=where, line=None) for problem in error.problems)
    return tuple(values)


def _read(document: Document, override: str, where: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not _KEY.match(path):
        raise ConfigError([Problem("", "is no override; write key=value, such as optimizer.lr=0.05", where)])
    value, parsed = parse_value(text, where)
    document.problems.extend(replace(problem, path=path, line=None) for problem in parsed.problems)
    document.forget(path)
    document.origins[path] = Origin(where)
    for parent in accumulate(path.split(".")[:-1], join):
        document.origins.setdefault(parent, Origin(where))
    return path, value
