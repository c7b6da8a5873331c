"""The data of one phase, as the loop uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any


class PhaseData(ABC):
    """A phase's data on this rank. Training iterates over it epoch by epoch, an evaluation once. Used in workers.

    The defaults are those of data whose position the loop's counters know.
    """

    loader: Any
    """The loader in `state.loaders`."""
    by_index = False
    """True if a position in an epoch is a number of samples, from which any number of ranks can continue."""
    size: int | None = None
    """Samples of an epoch on all ranks; None if unknown."""
    runs_dry = False
    """True if training ends when a rank has no batch left, so that all ranks agree before each batch."""
    is_over = False
    """True if training has ended that way."""

    @abstractmethod
    def length(self, offset: int = 0) -> int:
        """Return this rank's batches in an epoch, without the first `offset` samples of all ranks.

        In training all ranks have the same number. In an evaluation 0 means unknown.
        """

    @abstractmethod
    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """Return the training batches of an epoch, without the first `offset` samples of all ranks."""

    def ready(self) -> bool:
        """Return whether every rank has another training batch; collective."""
        return True

    def has_more(self) -> bool:
        """Return whether every rank has a training batch after the phase that has just ended; collective."""
        return True

    def state_dict(self) -> dict[str, Any] | None:
        """Return this rank's position, as plain data; None if the loop's counters know it."""
        return None

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:  # noqa: B027  # nothing by default
        """Continue at a saved position; raises CheckpointError if that is impossible."""

    @abstractmethod
    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        """Return the batches of an evaluation, and an iterable with an item for each of them."""

    def close(self) -> None:
        self.loader = None

    @abstractmethod
    def first_sample(self) -> Any:
        """Return a batch of the first sample, the same on each rank and each time."""

    @abstractmethod
    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield this rank's batches once, the same each time, without effect on the training."""
