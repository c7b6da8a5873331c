"""An experiment file over its bases, and `key=value` overrides over that. Runs in the driver."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, Problem, shorten
from orchestrator.experiment.yaml.document import Document, Location, join, list_prefixes
from orchestrator.experiment.yaml.reader import parse_value, read_yaml
from orchestrator.experiment.yaml.source import check_path, expand_short_form

_KEY = re.compile(r"^[\w/-]+(\.[\w/-]+)*$")


def read_layers(path: Path) -> tuple[Document, list[Path]]:
    """Return a file merged over its bases, and their folders, each once, its own first.

    Raises ConfigError.
    """
    folders: list[Path] = []
    return _read(path, folders, ()), folders


def _read(path: Path, folders: list[Path], extended_by: Sequence[Path]) -> Document:
    document = read_yaml(path)
    folder = path.resolve().parent
    if folder not in folders:
        folders.append(folder)
    names = _list_base_names(document.data.pop("base", None), document)
    bases = [
        _read_base(path.parent / name, folders, document, [*extended_by, path]) for name in names
    ]
    merged, *layers = [*bases, document]
    for layer in layers:
        _merge(merged, layer)
    return merged


def _merge(below: Document, above: Document) -> None:
    """Merge `above` into `below`."""
    replaced = _merge_data(below.data, above.data, "")
    below.forget(replaced)
    below.locations.update(above.locations)
    below.problems.extend(above.problems)


def _read_base(
    file: Path, folders: list[Path], document: Document, above: Sequence[Path]
) -> Document:
    resolved = [path.resolve() for path in above]
    if file.resolve() in resolved:
        cycle = [*above[resolved.index(file.resolve()) :], file]
        names = " extends ".join(path.name for path in cycle)
        raise _make_base_error(document, f"must not be circular: {names}")
    try:
        return _read(file, folders, above)
    except ConfigError as error:
        problem = error.problems[0]
        if problem.path or problem.line is not None:
            raise
        # The base itself cannot be read.
        message = f"{shorten(str(file), 200)} {problem.message}"
        raise _make_base_error(document, message, problem.suggestion) from None


def _list_base_names(base: Any, document: Document) -> list[str]:
    if base is None:
        return []
    names = base if isinstance(base, list) else [base]
    if not all(isinstance(name, str) and name for name in names):
        raise _make_base_error(
            document, f"must be a file or a list of files, got {shorten(repr(base))}"
        )
    return names


def _make_base_error(
    document: Document, message: str, suggestion: str | None = None
) -> ConfigError:
    return ConfigError([document.locate(Problem("base", message, suggestion=suggestion))])


def _merge_data(below: dict[str, Any], above: Mapping[str, Any], path: str) -> list[str]:
    """Merge `above` into `below`, and return the paths of replaced values.

    A mapping with another `type` replaces the whole mapping.
    """
    replaced = []
    for key, value in above.items():
        inner = join(path, key)
        old = expand_short_form(below.get(key), inner)
        if _can_merge(old, value):
            below[key] = old
            replaced += _merge_data(old, value, inner)
        else:
            below[key] = value
            replaced.append(inner)
    return replaced


def _can_merge(old: Any, value: Any) -> bool:
    if not isinstance(old, dict) or not isinstance(value, dict):
        return False
    kind = old.get("type")
    return bool(value.get("type", kind) == kind)


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
