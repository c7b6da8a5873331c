"""Resolve an experiment: check its sections, build its task and hooks, and compare them.

Runs once in every process that needs an experiment: the driver, a worker, a trial's process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hooks import Hook, ParamScheduler
from hooks.import_path import extend_import_path
from hooks.metrics.direction import Mode
from orchestrator.errors import ConfigError, Problem, collect_problems, raise_problems
from orchestrator.experiment.checks.conflicts import find_conflicts
from orchestrator.experiment.checks.key_paths import suggest_path
from orchestrator.experiment.checks.metric_modes import (
    read_meter_modes,
    with_inferred_modes,
    with_meter_modes,
)
from orchestrator.experiment.checks.optimizers import check_optimizer_arguments
from orchestrator.experiment.checks.train_method import list_default_hooks, list_train_defaults
from orchestrator.experiment.checks.unknown_classes import (
    replace_unknown_classes,
    replace_unknown_hooks,
)
from orchestrator.experiment.components import BuiltHook, make_hooks, make_task
from orchestrator.experiment.optimizer_defaults import (
    fill_optimization_defaults,
    with_stepping_interval,
)
from orchestrator.experiment.sections.experiment import Experiment, without_nulls
from orchestrator.experiment.sections.validation import NO_TASK, validate_sections
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code.failures import call_for_mapping
from orchestrator.user_code.main_definitions import define_in_main
from orchestrator.user_code.named_classes import find_class


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with every default filled in, and its task and hooks."""

    experiment: Experiment
    task: Task
    hooks: dict[str, Hook]
    """Enabled hooks by name, in order."""


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


def resolve(source: ExperimentSource) -> ResolvedExperiment:
    """Return the experiment of a source with defaults, task and hooks.

    Raises ConfigError with every problem.

    For a sweep, does not check the search space; `load` does.
    """
    return resolve_sections(read_sections(source))


def take_resolved(experiment: Experiment) -> ResolvedExperiment:
    """Return an experiment with the task and the hooks that were made when it was checked.

    They are given away once, because a run changes its hooks; the next call makes new ones.
    """
    taken: ResolvedExperiment | None = experiment.resolution.take()
    return taken or resolve(experiment.source)


def get_resolved(experiment: Experiment) -> ResolvedExperiment:
    """Return an experiment with its task and hooks, to read; a run takes them."""
    return experiment.resolution.resolved or resolve(experiment.source)


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
    known = without_nulls(replace_unknown_classes(data, unknown))
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


def resolve_sections(sections: Sections) -> ResolvedExperiment:
    """Build the hooks of an experiment, and check all sections together; raise ConfigError.

    The experiment gets the source of the sections, and keeps the task and the hooks for its run.
    """
    experiment = sections.experiment
    problems = list(sections.problems)
    unknown = list(sections.unknown)
    task, task_args = sections.task_and_args or (None, {})
    with seeded(experiment.seed):
        built = _build_hooks(sections, task, problems, unknown)
    hooks = {name: entry.hook for name, entry in (built or {}).items() if entry}

    if sections.task and not sections.has_custom_loop:
        # If the hooks are invalid, assume that the default one steps the scheduler.
        hooks_to_check = {"param_scheduler": ParamScheduler()} if built is None else hooks
        problems += check_optimizer_arguments(experiment, sections.task, hooks_to_check)
    if problems or task is None or built is None:
        all_problems = dict.fromkeys([*unknown, *problems])
        raise ConfigError([suggest_path(problem, sections.task) for problem in all_problems])

    entries = {name: entry.entry if entry else None for name, entry in built.items()}
    experiment = experiment.model_copy(update={"task_args": task_args, "hooks": entries})
    raise_problems([*unknown, *find_conflicts(experiment, task, hooks, sections.meter_modes)])
    resolved = ResolvedExperiment(experiment, task, hooks)
    if sections.source:
        # Trials make their own task and hooks; a task may hold much memory.
        experiment.attach(sections.source, None if experiment.sweep else resolved)
    return resolved


def _build_hooks(
    sections: Sections, task: Task | None, problems: list[Problem], unknown: list[Problem]
) -> dict[str, BuiltHook | None] | None:
    """Create the hooks by name, and add the problems; None if there are any."""
    required: Mapping[Any, Any] = {}
    if task:
        expected = "a mapping of names to hooks"
        returned = collect_problems(problems, call_for_mapping, task.required_hooks, expected)
        required = returned or {}
    defaults = list_default_hooks() if sections.has_custom_loop else None
    entries = replace_unknown_hooks(sections.experiment.hooks, required, unknown)
    return collect_problems(problems, make_hooks, entries, required, defaults)


def find_task(name: Any) -> type[Task] | None:
    """Return the class of the task, or None if there is none; `make_task` reports why."""
    if not isinstance(name, str) or name == NO_TASK:
        return None
    return collect_problems([], find_class, name, Task, {}, "task")
