"""From a YAML file to a checked experiment, and back. Runs in the driver; a worker gets the plain data."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hooks.parts.import_path import extend_import_path
from orchestrator.config.changes import change_problems
from orchestrator.config.complete import attempt, completed, single
from orchestrator.config.experiment import Experiment
from orchestrator.config.overrides import apply_overrides, set_path
from orchestrator.config.parameters import plain
from orchestrator.config.reader import Document, dump_yaml, join, read_yaml
from orchestrator.config.sweep_check import sweep_problems
from orchestrator.errors import ConfigError, Problem


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment or a sweep over one, lays `key=value` overrides over it, and checks everything.

    Imports the task and the hooks it names, from the folder of the file or the current one where they are not
    installed. Raises ConfigError with every problem found, each with its place.
    """
    overrides = tuple(overrides)
    document, folders = _read(Path(path))
    apply_overrides(document, overrides)
    experiment = _checked(document, [*folders, Path.cwd()])
    experiment._source = str(Path(path).absolute()), overrides
    return experiment


def experiment_from_dict(data: Mapping[str, Any], import_paths: Iterable[str | Path] = ()) -> Experiment:
    """An experiment from plain data, such as `resolved` gives; raises ConfigError."""
    return _checked(Document(_plain(data)), import_paths)


def with_overrides(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment of one trial: `{"hooks.ema.decay": 0.9}` laid over it and checked again; raises ConfigError."""
    data = single(experiment._written or resolved(experiment))
    for path, value in values.items():
        set_path(data, path, _plain(value))
    if experiment.sweep is not None:
        _report_rows(data, experiment.sweep.row_stats)
    return _checked(Document(data), experiment.import_paths)


def _report_rows(data: dict[str, Any], statistics: Sequence[str]) -> None:
    """Switches on the hook that reports statistics of rows, where trials are judged by some."""
    if statistics:
        hooks = data.setdefault("hooks", {})
        entry = hooks.get("row_stats") or {}
        given = entry.get("report", []) if isinstance(entry, dict) else []
        hooks["row_stats"] = {**(entry if isinstance(entry, dict) else {}), "report": list(dict.fromkeys([*given, *statistics]))}


def resolved(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain data with every default filled in."""
    return experiment.model_dump(mode="json")


def to_yaml(experiment: Experiment) -> str:
    """The resolved experiment as YAML, ready to be run again."""
    return dump_yaml(resolved(experiment))


# Reading


def _read(path: Path) -> tuple[Document, list[Path]]:
    """A file laid over its base, and the folders of both."""
    document = read_yaml(path)
    folder = path.resolve().parent
    base = document.data.pop("base", None)
    if base is None:
        return document, [folder]
    if not isinstance(base, str):
        raise ConfigError([document.locate(Problem("base", f"must be a file, got {base!r}"))])
    file = path.parent / base
    if not file.is_file():
        raise ConfigError([document.locate(Problem("base", f"there is no file {file}"))])
    below = read_yaml(file)
    if "base" in below.data:
        raise ConfigError([below.locate(Problem("base", f"a base has no base of its own; {path} builds on this file"))])
    return _laid_over(below, document), [folder, file.resolve().parent]


def _laid_over(below: Document, above: Document) -> Document:
    merged = Document(copy.deepcopy(below.data), dict(below.places), [*below.problems, *above.problems])
    _merge(merged, merged.data, above.data, "")
    merged.places.update(above.places)
    return merged


def _merge(document: Document, below: dict[str, Any], above: Mapping[str, Any], path: str) -> None:
    """Mappings are merged; anything else replaces, and so does a mapping that names another `type`."""
    for key, value in above.items():
        inner = join(path, key)
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("type", old.get("type")) == old.get("type"):
            _merge(document, old, value, inner)
            continue
        below[key] = value
        document.forget(inner)


# Checking


def _checked(document: Document, import_paths: Iterable[str | Path]) -> Experiment:
    folders = tuple(dict.fromkeys(str(Path(folder).absolute()) for folder in import_paths))
    extend_import_path(folders)
    problems = list(document.problems)
    experiment = attempt(problems, completed, document.data)
    problems.extend([*sweep_problems(document.data, problems), *change_problems(document.data, problems)])
    if problems or experiment is None:
        raise ConfigError(sorted((document.locate(problem) for problem in problems), key=_in_order))
    experiment._import_paths = folders
    experiment._written = copy.deepcopy(document.data)
    return experiment


def _in_order(problem: Problem) -> tuple[str, int]:
    return problem.file or "", problem.line or 0


def _plain(value: Any) -> Any:
    """A copy that holds only what YAML can say."""
    try:
        return json.loads(json.dumps(value, default=plain))
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("", f"is no plain data: {error}")]) from None
