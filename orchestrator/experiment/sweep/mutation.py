"""The values that a population changes during training, as in PBT."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import Problem
from orchestrator.experiment.checks.train_method import list_train_parameters
from orchestrator.experiment.make_hooks import PLAN_KEYS
from orchestrator.experiment.make_task import find_task
from orchestrator.experiment.optim.optimization import parse_optimizer_path
from orchestrator.experiment.optim.scheduler_conflicts import find_overwritten_number
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.nearest_names import did_you_mean
from orchestrator.task import has_custom_loop


def list_mutated_paths(sweep: SweepSettings) -> list[str]:
    """Return the paths that a population changes during training, in the order of the space."""
    scheduler = sweep.scheduler
    if not isinstance(scheduler, PBT):
        return []
    if scheduler.mutate is None:
        return [name for name in sweep.space if _can_mutate(name)]
    return [name for name in sweep.space if name in scheduler.mutate]


def _can_mutate(name: str) -> bool:
    """Return whether a population can change a path during training."""
    keys = name.split(".")
    is_field = keys[0] == "hooks" and len(keys) >= 3 and keys[2] not in PLAN_KEYS
    return is_field or parse_optimizer_path(name) is not None


def check_mutation(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    """Yield the problems of the values that a population changes during training.

    A training loop of the task's own starts over with the new values, so `mutate` may also name
    the settings that it reads.
    """
    scheduler = sweep.scheduler
    if not isinstance(scheduler, PBT):
        return
    restartable = _list_restartable_keys(experiment)
    for index, name in enumerate(scheduler.mutate or []):
        path = f"sweep.scheduler.mutate.{index}"
        if name not in sweep.space:
            hint = did_you_mean(name, sweep.space)
            yield Problem(path, f"'{name}' is not in the space", suggestion=hint)
        elif name.partition(".")[0] not in restartable and not _can_mutate(name):
            allowed = "name fields of hooks or optimizer numbers"
            yield Problem(path, f"'{name}' cannot change during training; {allowed}")

    yield from _find_overwritten_numbers(sweep, experiment)
    if not list_mutated_paths(sweep) and not scheduler.mutate:
        others = [name for name in sweep.space if name.partition(".")[0] in restartable]
        hint = f"write mutate: [{', '.join(others)}], or some of these" if others else None
        needed = "a swept field of a hook or number of the optimizer to change"
        yield Problem("sweep.scheduler", f"{scheduler.type} needs {needed}", suggestion=hint)
    elif count_trials(sweep) < 2:
        yield Problem(
            "sweep.trials", f"must be at least 2 with scheduler: pbt, got {count_trials(sweep)}"
        )


def _find_overwritten_numbers(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    """Yield the problems of mutated numbers that a scheduler sets."""
    optimizations = list_optimizations(experiment)
    for path in list_mutated_paths(sweep):
        name, key = parse_optimizer_path(path) or (None, "")
        if name in optimizations:
            for problem in find_overwritten_number(optimizations[name], key):
                yield replace(problem, path=f"sweep.space.{path}")


def _list_restartable_keys(experiment: Experiment) -> list[str]:
    """Return the keys that a training loop of the task's own reads when it starts over."""
    task = find_task(experiment.task)
    if task is None or not has_custom_loop(task):
        return []
    return ["task_args", *list_train_parameters(task)]
