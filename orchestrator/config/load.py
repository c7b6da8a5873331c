"""From a YAML file to a checked experiment, and back. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.checks.sweep_check import sweep_problems
from orchestrator.config.resolve import resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.bases import Layers, read_layers
from orchestrator.config.text.overrides import read_overrides
from orchestrator.config.text.reader import Document, dump_yaml, join, parse_yaml
from orchestrator.config.text.source import ExperimentSource, plain_copy
from orchestrator.errors import ConfigError, Problem, UsageError, collect_problems


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment or a sweep over one, lays `key=value` overrides over it, and checks everything.

    Imports the task and the hooks it names, from the folder of the file or the current one where they are not
    installed. Raises ConfigError with every problem found, each with its place.
    """
    return _checked(*_written(Path(path), overrides))


def load_with_data(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment as `load_experiment` does, and check its data, which may take long."""
    from orchestrator.config.checks.data import data_problems

    source, document = _written(Path(path), overrides)
    experiment = _checked(source, document)
    if problems := data_problems(to_dict(experiment), resolve(source).task):
        raise ConfigError([document.locate(problem) for problem in problems])
    return experiment


def _written(path: Path, overrides: Iterable[str]) -> tuple[ExperimentSource, Document]:
    overrides = list(overrides)
    layers = read_layers(path)
    values = read_overrides(layers.document, overrides)
    chosen = [value for name, value in values if name == "base"]
    if chosen:
        layers = _over_chosen(path, chosen, layers.document)
        values = read_overrides(layers.document, overrides)
    document = layers.document
    folders = [*layers.folders, Path.cwd()]
    values = tuple((name, value) for name, value in values if name != "base")
    source = ExperimentSource.from_data(
        document.data, folders, values=values, file=str(path.absolute()), base=tuple(chosen)
    )
    return source, document


def _over_chosen(path: Path, chosen: Sequence[Any], overridden: Document) -> Layers:
    """The file over a base that an override names; what is wrong with that is told there."""
    try:
        return read_layers(path, chosen)
    except ConfigError as error:
        raise ConfigError(
            [overridden.locate(Problem("base", one.message)) if one.path == "base" else one for one in error.problems]
        ) from None


def reload_experiment(source: ExperimentSource) -> Experiment:
    """What the file of a source says now, under the same values; raises ConfigError."""
    assert source.file is not None
    layers = read_layers(Path(source.file), source.base)
    return _checked(replace(source, written=plain_copy(layers.document.data)), layers.document)


def experiment_from_dict(data: Mapping[str, Any], import_paths: Iterable[str | Path] = ()) -> Experiment:
    """An experiment from plain data; raises ConfigError."""
    return experiment_from_source(ExperimentSource.from_data(data, import_paths))


def experiment_from_source(source: ExperimentSource) -> Experiment:
    """The experiment of a source, its sweep checked too where it has one; raises ConfigError."""
    return _checked(source, Document({}))


def with_overrides(source: ExperimentSource, overrides: Iterable[str]) -> Experiment:
    """The experiment of a source with `key=value` overrides over it; raises ConfigError."""
    document = Document({})
    values = read_overrides(document, overrides)
    return _checked(replace(source, values=(*source.values, *values)), document)


def check_experiment(experiment: object) -> Experiment:
    """An experiment that was made or copied in Python, checked and filled in; one that was read is so already. Raises
    ConfigError, and UsageError for what is no experiment."""
    if not isinstance(experiment, Experiment):
        given = type(experiment).__name__
        raise UsageError(
            f"must be an Experiment, got {given}; load_experiment(FILE) reads one, Experiment(task=..., epochs=...)"
            " makes one"
        )
    return experiment if experiment._is_resolved else experiment_from_source(experiment.source)


def experiment_with_edits(source: ExperimentSource, filled_in: str) -> Experiment:
    """The experiment of a run that goes on: what was written, and over it what somebody has mended since in
    `filled_in`, the text of the run's experiment.yaml. Raises ConfigError."""
    data = parse_yaml(filled_in, "experiment.yaml").data
    try:
        before = to_dict(resolve(source).experiment)
    except ConfigError:  # it is right no more: the code has changed
        return experiment_from_source(replace(source, written=data, values=()))
    return experiment_from_source(source.with_values(dict(_differences(before, data))))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of what differs; a mapping as a whole where a key is gone from it, or no path leads into
    it."""
    for key, value in after.items():
        old, inner = before.get(key), join(path, key)
        if (
            isinstance(old, dict)
            and isinstance(value, dict)
            and old.keys() <= value.keys()
            and not any("." in one for one in value)
        ):
            yield from _differences(old, value, inner)
        elif value != old:
            yield inner, value


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain data with every default filled in."""
    return experiment.model_dump(mode="json")


def to_yaml(experiment: Experiment) -> str:
    """The resolved experiment as YAML, ready to be run again."""
    return dump_yaml(to_dict(experiment))


# Checking


def _checked(source: ExperimentSource, document: Document) -> Experiment:
    problems = list(document.problems)
    resolved = collect_problems(problems, resolve, source)
    problems.extend(sweep_problems(source, problems))
    if problems or resolved is None:
        located = map(document.locate, problems)
        raise ConfigError(sorted(located, key=lambda problem: (problem.file or "", problem.line or 0)))
    return resolved.experiment
