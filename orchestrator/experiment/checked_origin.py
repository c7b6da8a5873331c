"""The task and the hooks that were made when an experiment was checked, for its first run."""

from dataclasses import dataclass

from hooks import Hook
from orchestrator.experiment.origin import Origin
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task


@dataclass
class CheckedOrigin(Origin):
    """What an experiment was made of that has been checked, and what was made of it then."""

    task_and_hooks: tuple[Task, dict[str, Hook]] | None = None
    """None if they are not kept, or a run has taken them."""

    def __reduce__(self) -> tuple[type[Origin], tuple[object, ...]]:
        # A copy that shares nothing is checked again, as it needs its own task and hooks.
        return Origin, (self.source, self.given)


def keep_for_run(resolved: ResolvedExperiment) -> Experiment:
    """Return a checked experiment, which keeps its task and its hooks for its first run."""
    experiment = resolved.experiment
    # Trials make their own task and hooks; a task may hold much memory.
    kept = None if experiment.sweep else (resolved.task, resolved.hooks)
    experiment.attach(CheckedOrigin(experiment.source, task_and_hooks=kept))
    return experiment


def is_checked(experiment: Experiment) -> bool:
    return isinstance(experiment.origin, CheckedOrigin)


def take_resolved(experiment: Experiment) -> ResolvedExperiment:
    """Return an experiment with the task and the hooks that were made when it was checked.

    They are given away once, because a run changes its hooks; the next call makes new ones.
    """
    resolved = get_resolved(experiment)
    if isinstance(experiment.origin, CheckedOrigin):
        experiment.origin.task_and_hooks = None
    return resolved


def get_resolved(experiment: Experiment) -> ResolvedExperiment:
    """Return an experiment with its task and hooks, to read; a run takes them."""
    origin = experiment.origin
    if isinstance(origin, CheckedOrigin) and origin.task_and_hooks:
        return ResolvedExperiment(experiment, *origin.task_and_hooks)
    return resolve(origin.source)
