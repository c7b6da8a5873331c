"""The assignment of a worker: an experiment to train, or a checkpoint to evaluate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from hooks.errors import describe_error
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import UsageError
from orchestrator.experiment.yaml.source import ExperimentSource


@dataclass(frozen=True)
class EvaluationTarget:
    """The checkpoint that an evaluation loads from its parent run, and the data to evaluate on:
    `val` or `test`."""

    checkpoint: str
    phase: str
    rewinds: bool = True
    """True to start from the random state of the run's own evaluation; False if the seed
    differs."""
    noun: ClassVar[str] = "evaluation"

    def pickle_data(self, address: str | None) -> Self:
        """Return the target as it can be sent to the workers of a cluster. Used in the driver."""
        return self


@dataclass(frozen=True)
class PredictionTarget(EvaluationTarget):
    """The checkpoint of which predictions are written, and the data to predict."""

    provider: str = ""
    """Name of the hook whose weights are used; empty for the raw weights."""
    data: Any = None
    """Data in place of the phase's: a dataset, a pickled one, or `module:function`. The task's own
    is not loaded then."""
    epoch_iterations: int | None = None
    """Training iterations of an epoch of the run; None if unknown."""
    noun: ClassVar[str] = "prediction"

    def pickle_data(self, address: str | None) -> Self:
        if self.data is None or isinstance(self.data, str):
            return self
        set_environment(address)  # Ray reads the environment on import
        # Workers find the modules of its classes once they know the experiment.
        return replace(self, data=_pickle_dataset(self.data))


@dataclass(frozen=True)
class Assignment:
    """Description of a worker's run, as plain data."""

    source: ExperimentSource
    location: str
    """The run's folder."""
    mailbox: str | None = None
    """Name of rank 0's mailbox, if it has one."""
    checkpoint: str | None = None
    """Path of the checkpoint to start from, of this run or another; by default this run's
    newest."""
    sweep: dict[str, Any] | None = None
    """The `sweep` section of a trial's sweep, for the hooks' config."""
    followers: tuple[Assignment, ...] = ()
    """Runs that share the training of this run."""
    target: EvaluationTarget | None = None
    """Checkpoint to evaluate; None to train."""


def _pickle_dataset(dataset: Any) -> bytes:
    """Pickle a dataset for the workers; raises UsageError. Imports ray."""
    from ray import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(dataset)
    # The pickler may raise anything for what the dataset refers to.
    except Exception as error:
        raise UsageError(
            f"the {type(dataset).__name__} cannot be sent to the ranks ({describe_error(error)}); name a function"
            " that returns it, as module:function"
        ) from error
    return pickled
