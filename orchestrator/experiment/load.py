"""Load an experiment from a YAML file or plain data, and convert it back. Runs in the driver."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import (
    ConfigError,
    Problem,
    UsageError,
    collect_problems,
)
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.checks.data import check_data
from orchestrator.experiment.checks.unreached import find_unreached_settings
from orchestrator.experiment.make_task import find_task
from orchestrator.experiment.read_sections import Sections, read_sections
from orchestrator.experiment.resolve import ResolvedExperiment, resolve_sections
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sweep.check import check_sweep
from orchestrator.experiment.task_methods import find_misspelled_methods
from orchestrator.experiment.yaml.document import Document
from orchestrator.experiment.yaml.layers import read_layers
from orchestrator.experiment.yaml.overrides import add_overrides
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.experiment.yaml.writer import dump_yaml

_log = logging.getLogger("hookyard")


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> CheckedExperiment:
    """Read an experiment or a sweep, apply overrides, and check everything.

    Imports the task and the hooks, also from the file's folder and the current one.

    Args:
        path: The YAML file.
        overrides: Values to change, as on the command line: `["optimizer.lr=0.05", "epochs=5"]`.

    Returns:
        The checked experiment, for `run`, or for `sweep` if it has a `sweep`.

    Raises:
        ConfigError: If anything in the file is wrong; it lists every problem with its line.

    Example:
        ```python
        experiment = load_experiment("spirals.yaml", ["epochs=5"])
        ```
    """
    source, document = _read(Path(path), overrides)
    return _with_warnings(_check(source, document))


def load_checked(path: str | Path, overrides: Iterable[str] = ()) -> CheckedExperiment:
    """Read an experiment as `load_experiment` does, and check its data, which may be slow."""
    source, document = _read(Path(path), overrides)
    return _with_warnings(_check(source, document, with_data=True))


def _read(path: Path, overrides: Iterable[str]) -> tuple[ExperimentSource, Document]:
    document, folders = read_layers(path)
    values = add_overrides(document, overrides)
    source = ExperimentSource.from_data(document.data, [*folders, Path.cwd()], values=values)
    return source, document


def make_experiment(
    data: Mapping[str, Any], import_paths: Iterable[str | Path] = ()
) -> CheckedExperiment:
    """Make an experiment from plain data, or raise ConfigError."""
    return make_experiment_from_source(ExperimentSource.from_data(data, import_paths))


def make_experiment_from_source(source: ExperimentSource) -> CheckedExperiment:
    """Make the experiment of a source and check its sweep, or raise ConfigError."""
    return _check(source, Document({}))


def with_overrides(source: ExperimentSource, overrides: Iterable[str]) -> CheckedExperiment:
    """Make the experiment of a source with `key=value` overrides, or raise ConfigError."""
    document = Document({})
    values = add_overrides(document, overrides)
    return _check(replace(source, values=(*source.values, *values)), document)


def check_experiment(experiment: object) -> CheckedExperiment:
    """Return an experiment made in Python, checked and with its defaults.

    Raises ConfigError or UsageError.
    """
    if not isinstance(experiment, Experiment):
        raise UsageError(
            f"must be an Experiment, such as load_experiment(FILE), got {type(experiment).__name__}"
        )
    if isinstance(experiment, CheckedExperiment):
        return experiment
    return _with_warnings(_check(experiment.source, Document({})))


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as plain data, with every default."""
    return experiment.model_dump(mode="json")


def to_yaml(experiment: Experiment) -> str:
    """Return the resolved experiment as YAML, ready to run again."""
    return dump_yaml(to_dict(experiment))


def _with_warnings(experiment: CheckedExperiment) -> CheckedExperiment:
    task = find_task(experiment.task)
    misspelled = find_misspelled_methods(task) if task else ()
    for problem in (*misspelled, *find_unreached_settings(experiment)):
        _log.warning("%s", problem)
    return experiment


def _check(
    source: ExperimentSource, document: Document, *, with_data: bool = False
) -> CheckedExperiment:
    """Return the experiment of a source.

    Raises ConfigError with all problems, located by the document.
    """
    problems, resolved = _find_problems(source, document, with_data=with_data)
    if problems or resolved is None:
        blamed = [_blame_override(problem, source, document) for problem in problems]
        raise ConfigError(document.sort(blamed))
    return CheckedExperiment.make(resolved)


def _find_problems(
    source: ExperimentSource, document: Document, *, with_data: bool = False
) -> tuple[list[Problem], ResolvedExperiment | None]:
    """Return all problems of a source, and the experiment unless there is none."""
    sections = read_sections(source)
    problems = list(document.problems)
    resolved = collect_problems(problems, resolve_sections, sections)
    problems.extend(check_sweep(source, sections, is_experiment_valid=not problems))
    if with_data:
        # Even if other parts are wrong, so that one mistake does not hide another.
        problems.extend(_check_data(sections, resolved))
    return problems, resolved


def _blame_override(problem: Problem, source: ExperimentSource, document: Document) -> Problem:
    """Locate a problem of a whole mapping, which a class has refused, at the last override inside
    the mapping without which there would be no such problem."""
    if problem.file or not problem.path:
        return problem
    for index, (path, _) in reversed([*enumerate(source.values)]):
        if not path.startswith(f"{problem.path}.") or path not in document.locations:
            continue
        others = (*source.values[:index], *source.values[index + 1 :])
        remaining, _ = _find_problems(replace(source, values=others), document)
        if problem not in remaining:
            return replace(problem, file=document.locations[path].file)
    return problem


def _check_data(sections: Sections, resolved: ResolvedExperiment | None) -> Iterator[Problem]:
    if resolved is not None:
        yield from check_data(resolved.experiment, resolved.task)
    elif sections.experiment.task != sections.data.get("task"):
        return  # another class stands for the task
    elif sections.task_and_args is not None:
        task, _ = sections.task_and_args
        yield from check_data(sections.experiment, task)
