"""The interfaces of one phase's data, and what decides how it is loaded."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from hooks.private_torch import end_processes
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.world import World
from orchestrator.task import Task


@dataclass(frozen=True)
class PhaseContext:
    """Everything that determines how this rank loads a phase's data. Used in workers."""

    task: Task
    phase: str
    experiment: Experiment
    world: World
    generator: torch.Generator = field(default_factory=torch.Generator)
    """Generator of the loader. It is not torch's default, because creating an iterator must not
    change the random state that a resume restores."""

    @property
    def is_training(self) -> bool:
        return self.phase == "train"

    @property
    def batch_size(self) -> int:
        eval_batch_size = self.experiment.loader.eval_batch_size
        if eval_batch_size and not self.is_training:
            return eval_batch_size
        return self.experiment.batch_size

    @property
    def drop_last(self) -> bool:
        return self.is_training and self.experiment.loader.drop_last

    @property
    def pin_memory(self) -> bool:
        pin_memory = self.experiment.loader.pin_memory
        return self.world.device.type == "cuda" if pin_memory is None else pin_memory

    def seed_generator(self, number: int) -> None:
        """Seed the generator for an epoch or pass."""
        seed = self.experiment.seed * 1_000_003 + number * 1_009 + self.world.rank
        self.generator.manual_seed(seed)


class PhaseData(ABC):
    """A phase's data on this rank, in a worker."""

    loader: Any
    """Loader, as in `state.loaders`."""
    size: int | None = None
    """Samples of an epoch on all ranks; None if unknown."""

    def __init__(self, context: PhaseContext) -> None:
        self._context = context

    @abstractmethod
    def length(self, offset: int = 0) -> int:
        """Return the number of this rank's batches in an epoch, after the first `offset` samples.

        The offset counts the samples of all ranks. In training all ranks have the same number. In
        an evaluation, 0 means unknown.
        """

    @abstractmethod
    def as_training_data(self) -> "TrainingData":
        """Return this data as training iterates over it."""

    @abstractmethod
    def evaluation_batches(self, number: int) -> tuple[Iterator[Any], Iterable[object]]:
        """Return the batches of an evaluation, which iterates over the data once, and an iterable
        with one item per batch.

        `number` is the number of evaluations before it, the same again when a checkpoint is
        evaluated.
        """

    def close(self) -> None:
        """Release the loader, and end its processes."""
        end_processes(self.loader)
        self.loader = None

    @abstractmethod
    def first_sample(self) -> Any:
        """Return a batch of the first sample, the same on each rank and each time."""

    @abstractmethod
    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield this rank's batches once, the same each time, without affecting training."""


class TrainingData(ABC):
    """The training data on this rank, over which training iterates epoch by epoch.

    The default methods suit data whose position follows from the loop's counters.
    """

    by_index = False
    """True if a position in an epoch is a number of samples.

    Then any number of ranks can continue there.
    """
    stops_when_exhausted = False
    """True if training ends when a rank has no batch left.

    Then all ranks agree before each batch.
    """
    loader_workers: int | None = None
    """Number of DataLoader workers if each has its own place in the data, so that training
    continues only with as many; None if any number can."""

    @abstractmethod
    def length(self, offset: int = 0) -> int:
        """Return the number of this rank's batches in an epoch, as `PhaseData.length` does."""

    @property
    def is_exhausted(self) -> bool:
        """True if training has ended because a rank had no batch left."""
        return False

    @abstractmethod
    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """Return the training batches of an epoch, after `offset` samples of all ranks."""

    def fetch_ahead(self) -> bool:
        """Fetch the next training batch; return whether every rank has one. Collective."""
        return True

    def has_more(self) -> bool:
        """Return whether every rank has a training batch after this phase; collective."""
        return True

    def state_dict(self) -> dict[str, Any] | None:
        """Return this rank's position as plain data; None if the loop's counters tell it."""
        return None

    @abstractmethod
    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        """Continue at a saved position; raises CheckpointError if that is impossible."""
