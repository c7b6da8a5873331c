"""What the data of a phase can do, whatever kind of data it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol


class PhaseData(Protocol):
    """A phase's data on this rank: training goes through it epoch by epoch, an evaluation once. Worker process."""

    loader: Any
    """What hooks find in `state.loaders`."""
    by_index: bool
    """Whether a place in an epoch is a number of samples, from which any number of ranks can go on."""
    size: int | None
    """Samples of an epoch on all ranks; None where that is not known."""
    runs_dry: bool
    """Whether training ends where a rank has no batch left, so that all must be asked before each."""
    is_over: bool
    """Whether training has come to that end."""

    def length(self, offset: int = 0) -> int:
        """This rank's batches in an epoch, without the first `offset` samples of all ranks: the same on every rank in
        training, 0 where it is not known in an evaluation."""

    def left(self, epoch: int) -> int | None:
        """Return the batches that are left of an epoch under way, where a restored place tells it; collective."""

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """The training batches of an epoch, without the first `offset` samples of all ranks."""

    def ready(self) -> bool:
        """Whether every rank has another training batch; collective."""

    def goes_on(self) -> bool:
        """Return whether every rank has a training batch after the phase that has just ended; collective."""

    def state_dict(self) -> dict[str, Any] | None:
        """This rank's place, as plain data; None where the loop's counters tell it."""

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        """Takes up what a rank of as many wrote down; raises CheckpointError where that cannot be."""

    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        """The batches of an evaluation, and something for each of them that there is."""

    def close(self) -> None:
        """Lets the loader go."""

    def first_sample(self) -> Any:
        """A batch of the first sample, the same on each rank and each time."""

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """This rank's batches once, the same each time, beside the training, whose order and numbers they do not
        disturb."""
