"""Resolve an experiment: check it and build its task and hooks, in three passes (fields,
components, cross-checks).

Runs once in every process that needs an experiment: the driver, a worker, a trial's process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hooks import Hook, ParamScheduler
from hooks.import_path import extend_import_path
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.checks.conflicts import (
    find_conflicts,
    list_default_hooks,
    list_train_defaults,
)
from orchestrator.experiment.checks.key_paths import suggest_path
from orchestrator.experiment.checks.metrics import with_inferred_modes
from orchestrator.experiment.checks.unknown_classes import (
    replace_unknown_classes,
    replace_unknown_hooks,
)
from orchestrator.experiment.components import make_hooks, make_task
from orchestrator.experiment.optim.optimization import (
    check_optimizer_arguments,
    fill_optimization_defaults,
    with_stepping_interval,
)
from orchestrator.experiment.sections.experiment import (
    NO_TASK,
    Experiment,
    validate_sections,
    without_nulls,
)
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code import call_for_mapping, define_main_classes, find_class


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with every default filled in, and its task and hooks."""

    experiment: Experiment
    task: Task
    hooks: dict[str, Hook]
    """Enabled hooks by name, in order."""


def resolve(source: ExperimentSource) -> ResolvedExperiment:
    """Return the experiment of a source with defaults, task and hooks; raise ConfigError with every
    problem.

    For a sweep, does not check the search space; `load` does.
    """
    extend_import_path(source.import_paths)
    define_main_classes(source.main_classes)
    data, problems = source.merged()
    resolved = collect_problems(problems, build, data)
    if problems or resolved is None:
        raise ConfigError(problems)
    resolved.experiment._source, resolved.experiment._is_resolved = source, True
    return resolved


def build(data: Mapping[str, Any]) -> ResolvedExperiment:
    """Check `data` and build the task and the hooks; raise ConfigError. Classes must be
    importable."""
    problems: list[Problem] = []
    unknown: list[Problem] = []
    data = replace_unknown_classes(data, unknown)
    task_class = find_task(data.get("task"))
    is_custom = task_class is not None and has_custom_loop(task_class)
    data = {
        **(list_train_defaults(task_class) if task_class and is_custom else {}),
        **without_nulls(data),
    }
    _, experiment = validate_sections(with_inferred_modes(data), problems)
    if task_class and not is_custom:
        with_defaults = collect_problems(
            problems, fill_optimization_defaults, experiment, task_class
        )
        experiment = with_stepping_interval(with_defaults or experiment, task_class)
    # A task may draw random numbers when it is created, for a model in `__post_init__` for example.
    with seeded(experiment.seed):
        task_and_args = None
        if experiment.task != NO_TASK:
            task_and_args = collect_problems(
                problems, make_task, experiment.task, experiment.task_args
            )
        task, task_args = task_and_args or (None, {})
        required = None
        if task:
            required = collect_problems(
                problems, call_for_mapping, task.required_hooks, "a mapping of names to hooks"
            )
        defaults = list_default_hooks() if is_custom else None
        entries = replace_unknown_hooks(experiment.hooks, required or {}, unknown)
        built = collect_problems(problems, make_hooks, entries, required or {}, defaults)
    hooks = {name: entry.hook for name, entry in (built or {}).items() if entry}
    if task_class and not is_custom:
        # If the hooks are invalid, assume that the default one steps the scheduler.
        hooks_to_check = {"param_scheduler": ParamScheduler()} if built is None else hooks
        check_optimizer_arguments(experiment, task_class, hooks_to_check, problems)
    if problems or task is None or built is None:
        raise ConfigError(
            [suggest_path(problem, task_class) for problem in dict.fromkeys([*unknown, *problems])]
        )

    entries = {name: entry.entry if entry else None for name, entry in built.items()}
    experiment = experiment.model_copy(update={"task_args": task_args, "hooks": entries})
    if problems := [*unknown, *find_conflicts(experiment, task, hooks)]:
        raise ConfigError(problems)
    return ResolvedExperiment(experiment, task, hooks)


def make_valid_task(source: ExperimentSource) -> tuple[Experiment, Task] | None:
    """Return the valid sections of an experiment whose classes can be imported, and its task; None
    without a task."""
    data, _ = source.merged()
    _, experiment = validate_sections(with_inferred_modes(without_nulls(data)), [])
    with seeded(experiment.seed):
        task_and_args = collect_problems([], make_task, experiment.task, experiment.task_args)
    return (experiment, task_and_args[0]) if task_and_args else None


def find_task(name: Any) -> type[Task] | None:
    """Return the class of the task, or None if there is none; `make_task` reports why."""
    is_named = isinstance(name, str) and name != NO_TASK
    return collect_problems([], find_class, name, Task, {}, "task") if is_named else None
