"""Resolve an experiment: from its checked sections to its hooks, and the checks of them all.

Runs once in every process that needs an experiment: the driver, a worker, a trial's process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hooks import Hook, ParamScheduler
from orchestrator.errors import ConfigError, Problem, collect_problems, raise_problems
from orchestrator.experiment.checks.conflicts import find_conflicts
from orchestrator.experiment.checks.key_paths import suggest_path
from orchestrator.experiment.checks.optimizers import check_optimizer_arguments
from orchestrator.experiment.checks.train_method import list_default_hooks
from orchestrator.experiment.checks.unknown_classes import replace_unknown_hooks
from orchestrator.experiment.make_hooks import BuiltHook, make_hooks
from orchestrator.experiment.read_sections import Sections, read_sections
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.randomness import seeded
from orchestrator.task import Task
from orchestrator.user_code.failures import call_for_mapping


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with every default filled in, and its task and hooks."""

    experiment: Experiment
    task: Task
    hooks: dict[str, Hook]
    """Enabled hooks by name, in order."""


def resolve(source: ExperimentSource) -> ResolvedExperiment:
    """Return the experiment of a source with defaults, task and hooks.

    Raises ConfigError with every problem.

    For a sweep, does not check the search space; `load` does.
    """
    return resolve_sections(read_sections(source))


def resolve_sections(sections: Sections) -> ResolvedExperiment:
    """Build the hooks of an experiment, and check all sections together; raise ConfigError.

    The experiment gets the source of the sections.
    """
    experiment = sections.experiment
    task, task_args = sections.task_and_args or (None, {})
    with seeded(experiment.seed):
        made = _make_hooks(sections, task)
    problems = [*sections.problems, *made.problems]
    unknown = [*sections.unknown, *made.unknown]
    built = made.hooks
    hooks = {name: entry.hook for name, entry in (built or {}).items() if entry}

    if sections.task and not sections.has_custom_loop:
        # If the hooks are invalid, assume that the default one steps the scheduler.
        hooks_to_check = {"param_scheduler": ParamScheduler()} if built is None else hooks
        problems += check_optimizer_arguments(experiment, sections.task, hooks_to_check)
    if problems or task is None or built is None:
        all_problems = dict.fromkeys([*unknown, *problems])
        raise ConfigError([suggest_path(problem, sections.task) for problem in all_problems])

    entries = {name: entry.entry if entry else None for name, entry in built.items()}
    experiment = experiment.with_valid_values(task_args=task_args, hooks=entries)
    raise_problems([*unknown, *find_conflicts(experiment, task, hooks, sections.meter_modes)])
    if sections.source:
        experiment = experiment.with_source(sections.source)
    return ResolvedExperiment(experiment, task, hooks)


@dataclass(frozen=True)
class _MadeHooks:
    """The hooks of an experiment by name, or the problems why there are none."""

    hooks: Mapping[str, BuiltHook | None] | None
    """None where a hook is off, or in place of all if one is wrong."""
    problems: Sequence[Problem]
    unknown: Sequence[Problem]
    """Problems of classes that cannot be found, for which others stand."""


def _make_hooks(sections: Sections, task: Task | None) -> _MadeHooks:
    """Make the hooks that the experiment and the task name."""
    problems: list[Problem] = []
    required: Mapping[Any, Any] = {}
    if task:
        expected = "a mapping of names to hooks"
        returned = collect_problems(problems, call_for_mapping, task.required_hooks, expected)
        required = returned or {}
    defaults = list_default_hooks() if sections.has_custom_loop else None
    entries, unknown = replace_unknown_hooks(sections.experiment.hooks, required)
    hooks = collect_problems(problems, make_hooks, entries, required, defaults)
    return _MadeHooks(hooks, problems, unknown)
