"""The sections of an experiment, read from YAML and each checked on its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hooks.import_path import extend_import_path
from hooks.metrics.direction import Mode
from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.checks.metric_modes import (
    read_meter_modes,
    with_inferred_modes,
    with_meter_modes,
)
from orchestrator.experiment.checks.train_method import list_train_defaults
from orchestrator.experiment.checks.unknown_classes import replace_unknown_classes
from orchestrator.experiment.make_task import NO_TASK, find_task, make_task
from orchestrator.experiment.optimizer_defaults import (
    fill_optimization_defaults,
    with_stepping_interval,
)
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.validation import validate_sections
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code.main_definitions import define_in_main


@dataclass(frozen=True)
class Sections:
    """The sections of an experiment, each checked on its own."""

    data: Mapping[str, Any]
    """The experiment as written: its file with all values set."""
    valid_keys: frozenset[str]
    experiment: Experiment
    """The valid sections with the task's defaults, and placeholders for the others."""
    task: type[Task] | None
    """The class of the task, or one that stands for it; None if the file names none."""
    task_and_args: tuple[Task, dict[str, Any]] | None
    """The task and all its arguments; None if it cannot be made."""
    meter_modes: Mapping[str, Mode]
    """`max` or `min` for each meter of the task that says whether higher is better."""
    problems: tuple[Problem, ...]
    unknown: tuple[Problem, ...]
    """Problems of classes that cannot be found, for which others stand."""
    source: ExperimentSource | None = None
    """What the sections were read from; None for those of plain data."""

    @property
    def has_custom_loop(self) -> bool:
        return self.task is not None and has_custom_loop(self.task)

    @property
    def valid_data(self) -> dict[str, Any]:
        return {key: value for key, value in self.data.items() if key in self.valid_keys}


def read_sections(source: ExperimentSource) -> Sections:
    """Return the checked sections of a source, and make its classes importable."""
    extend_import_path(source.import_paths)
    define_in_main(source.main_definitions)
    data, problems = source.merge()
    return replace(make_sections(data, problems), source=source)


def make_sections(data: Mapping[str, Any], problems: Sequence[Problem] = ()) -> Sections:
    """Return the sections of an experiment, each checked, with what its task sets.

    `problems` are those of the data, which is read.
    """
    known, unknown = replace_unknown_classes(data)
    written = _without_nulls(known)
    task = find_task(written.get("task"))
    is_custom = task is not None and has_custom_loop(task)
    if task and is_custom:
        written = {**list_train_defaults(task), **written}

    valid = validate_sections(with_inferred_modes(written))
    experiment = valid.experiment
    optimizer_problems: Sequence[Problem] = ()
    if task and not is_custom:
        experiment, optimizer_problems = _fill_optimizers(experiment, task)
    made = _make_task(experiment)
    return Sections(
        data=data,
        valid_keys=frozenset(valid.data),
        experiment=with_meter_modes(experiment, made.meter_modes),
        task=task,
        task_and_args=made.task_and_args,
        meter_modes=made.meter_modes,
        problems=(*problems, *valid.problems, *optimizer_problems, *made.problems),
        unknown=tuple(unknown),
    )


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop top-level nulls, which mean the default; `scheduler: null` means none."""
    return {key: value for key, value in data.items() if value is not None or key == "scheduler"}


def _fill_optimizers(
    experiment: Experiment, task: type[Task]
) -> tuple[Experiment, Sequence[Problem]]:
    """Return the experiment with the defaults of its optimizers and schedulers, and the problems of
    those that have none."""
    problems: list[Problem] = []
    filled = collect_problems(problems, fill_optimization_defaults, experiment, task)
    return with_stepping_interval(filled or experiment, task), problems


@dataclass(frozen=True)
class _MadeTask:
    """The task of an experiment, or the problems why there is none."""

    task_and_args: tuple[Task, dict[str, Any]] | None = None
    meter_modes: Mapping[str, Mode] = field(default_factory=dict)
    problems: Sequence[Problem] = ()


def _make_task(experiment: Experiment) -> _MadeTask:
    if experiment.task == NO_TASK:
        return _MadeTask()
    problems: list[Problem] = []
    # A task may draw random numbers when it is created, for a model in `__post_init__` for example.
    with seeded(experiment.seed):
        made = collect_problems(problems, make_task, experiment.task, experiment.task_args)
        if made is None:
            return _MadeTask(problems=problems)
        return _MadeTask(made, read_meter_modes(made[0]))
