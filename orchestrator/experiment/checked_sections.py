"""The sections of an experiment, read from YAML and each checked on its own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
from orchestrator.experiment.components import make_task
from orchestrator.experiment.optimizer_defaults import (
    fill_optimization_defaults,
    with_stepping_interval,
)
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.validation import NO_TASK, validate_sections
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code.main_definitions import define_in_main
from orchestrator.user_code.named_classes import find_class


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


def make_sections(data: Mapping[str, Any], problems: Iterable[Problem] = ()) -> Sections:
    """Return the sections of an experiment, each checked, with what its task sets."""
    collected = list(problems)
    unknown: list[Problem] = []
    known = _without_nulls(replace_unknown_classes(data, unknown))
    task = find_task(known.get("task"))
    is_custom = task is not None and has_custom_loop(task)
    if task and is_custom:
        known = {**list_train_defaults(task), **known}

    valid, experiment = validate_sections(with_inferred_modes(known), collected)
    if task and not is_custom:
        filled = collect_problems(collected, fill_optimization_defaults, experiment, task)
        experiment = with_stepping_interval(filled or experiment, task)

    # A task may draw random numbers when it is created, for a model in `__post_init__` for example.
    task_and_args = None
    with seeded(experiment.seed):
        if experiment.task != NO_TASK:
            task_and_args = collect_problems(
                collected, make_task, experiment.task, experiment.task_args
            )
        meter_modes = read_meter_modes(task_and_args[0]) if task_and_args else {}
    experiment = with_meter_modes(experiment, meter_modes)
    return Sections(
        data=data,
        valid_keys=frozenset(valid),
        experiment=experiment,
        task=task,
        task_and_args=task_and_args,
        meter_modes=meter_modes,
        problems=tuple(collected),
        unknown=tuple(unknown),
    )


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop top-level nulls, which mean the default; `scheduler: null` means none."""
    return {key: value for key, value in data.items() if value is not None or key == "scheduler"}


def find_task(name: Any) -> type[Task] | None:
    """Return the class of the task, or None if there is none; `make_task` reports why."""
    if not isinstance(name, str) or name == NO_TASK:
        return None
    return collect_problems([], find_class, name, Task, {}, "task")
