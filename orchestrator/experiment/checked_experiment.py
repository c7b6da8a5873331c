"""An experiment that has been checked, and the task and hooks that its check has made."""

from typing import Self

from pydantic import PrivateAttr

from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment


class _FirstRun:
    """The task and the hooks that the first run of an experiment takes, because a run changes them.

    A copy that shares nothing has none, so it makes its own.
    """

    def __init__(self, resolved: ResolvedExperiment | None = None) -> None:
        self.resolved = resolved

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class CheckedExperiment(Experiment):
    """An experiment without problems, with every default filled in, ready for `run` or `sweep`."""

    _first_run: _FirstRun = PrivateAttr(default_factory=_FirstRun)

    @classmethod
    def make(cls, resolved: ResolvedExperiment) -> Self:
        """Return a resolved experiment, which keeps its task and its hooks for its first run."""
        experiment = resolved.experiment
        checked = cls.model_construct(experiment.model_fields_set, **dict(experiment))
        checked = checked.with_source(experiment.source)
        # Trials make their own task and hooks; a task may hold much memory.
        if experiment.sweep is None:
            checked._first_run = _FirstRun(resolved)
        return checked

    def get_resolved(self) -> ResolvedExperiment:
        """Return the experiment with its task and hooks, to read; a run takes them."""
        return self._first_run.resolved or resolve(self.source)

    def take_resolved(self) -> ResolvedExperiment:
        """Return the experiment with its task and hooks for a run; the next call makes new ones."""
        resolved = self.get_resolved()
        self._first_run.resolved = None
        return resolved
