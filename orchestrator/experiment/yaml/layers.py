"""An experiment file over its bases. Runs in the driver."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, Problem, shorten, shorten_value
from orchestrator.experiment.yaml.document import Document
from orchestrator.experiment.yaml.dotted_paths import expand_short_form, join
from orchestrator.experiment.yaml.reader import name_file, read_yaml


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
        message = f"{shorten(name_file(file), 200)} {problem.message}"
        raise _make_base_error(document, message, problem.suggestion) from None


def _list_base_names(base: Any, document: Document) -> list[str]:
    if base is None:
        return []
    names = base if isinstance(base, list) else [base]
    if not all(isinstance(name, str) and name for name in names):
        raise _make_base_error(
            document, f"must be a file or a list of files, got {shorten_value(base)}"
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
        # A hook without `type` is of the class that its name says.
        default_type = key if path == "hooks" else None
        if _can_merge(old, value, default_type):
            below[key] = old
            replaced += _merge_data(old, value, inner)
        else:
            below[key] = value
            replaced.append(inner)
    return replaced


def _can_merge(old: Any, value: Any, default_type: str | None) -> bool:
    """Return whether two values are mappings, and the second has no other `type`."""
    if not isinstance(old, dict) or not isinstance(value, dict):
        return False
    kind = old.get("type", default_type)
    return bool(value.get("type", kind) == kind)
