"""Overrides of single values, `dotted.path=value`, as on the command line."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from orchestrator.errors import ConfigError, Problem, shorten
from orchestrator.experiment.yaml.document import Document, Location
from orchestrator.experiment.yaml.dotted_paths import check_path, list_prefixes
from orchestrator.experiment.yaml.reader import parse_value

_KEY = re.compile(r"^[\w/-]+(\.[\w/-]+)*$")


def add_overrides(document: Document, overrides: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Add each override, `dotted.path=value` with a value in YAML, to the places and problems of the
    document; return their paths and values.

    The document then locates these paths at the override. A malformed override becomes a problem of
    the document.
    """
    values = []
    for override in overrides:
        where = f"override '{shorten(override)}'"
        document.overrides.append(where)
        try:
            values.append(_read_override(document, override, where))
        except ConfigError as error:
            document.problems.extend(
                replace(problem, file=where, line=None) for problem in error.problems
            )
    return tuple(values)


def _read_override(document: Document, override: str, where: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not _KEY.match(path):
        message = "must be key=value, such as optimizer.lr=0.05; quote spaces and braces"
        raise ConfigError([Problem("", message, where)])
    if path == "base":
        message = "cannot be overridden; set it in the experiment file"
        raise ConfigError([Problem(path, message, where)])
    check_path(path)
    try:
        value, parsed = parse_value(text, where)
    except ConfigError as error:
        problem = replace(error.problems[0], suggestion="quote spaces and braces")
        raise ConfigError([problem]) from None
    # A shell's unset variable, or a comment.
    if value is None and text.strip().lower() not in ("null", "~"):
        raise ConfigError([Problem(path, f"has no value; write {path}=null to remove it", where)])
    document.problems.extend(replace(problem, path=path, line=None) for problem in parsed.problems)
    document.forget({path})
    document.locations[path] = Location(where)
    for parent in list_prefixes(path):
        document.locations.setdefault(parent, Location(where))
    return path, value
