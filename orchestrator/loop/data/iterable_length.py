"""The number of batches of an iterable phase: those on which the ranks agree, and those that were
read. Runs in workers."""

import logging
from dataclasses import dataclass
from typing import Self

from orchestrator.experiment.checks.iterable_data import choose_epoch_length
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.world import World

logger = logging.getLogger("hookyard")


def agree_on_length(own: int | None, world: World, *, is_smallest: bool) -> int | None:
    """Return the largest number of batches of any rank, or the smallest; None if unknown.
    Collective."""
    lengths: list[int | None] = world.gather(own)
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return min(known) if is_smallest else max(known)


@dataclass(frozen=True)
class IterableLength:
    """The batches of a rank in a pass and in an epoch."""

    own: int | None
    """Batches in a pass; None if unknown."""
    epoch: int
    """Batches in an epoch; 0 if unknown. In training all ranks have the same number."""
    is_epoch_one_pass: bool
    """True if an epoch is a pass, because its length is known and `epoch_steps` is not set."""

    @classmethod
    def agree(cls, context: PhaseContext, own: int | None) -> Self:
        """Return the lengths, of which this rank has its `own` batches in a pass; collective in
        training.

        Raises ConfigError if an epoch of training has no length.
        """
        experiment = context.experiment
        if not context.is_training:
            is_one_pass = own is not None and experiment.epoch_steps is None
            return cls(own, own or 0, is_one_pass)

        # Training stops when a rank has no batch left, or that rank begins its next pass.
        stops = experiment.loader.on_exhausted == "stop"
        agreed = agree_on_length(own, context.world, is_smallest=stops)
        is_one_pass = agreed is not None and experiment.epoch_steps is None
        return cls(own, choose_epoch_length(experiment, agreed), is_one_pass)


class BatchCounter:
    """Counter of the batches of a pass. It warns once if they are not those that the dataset's
    `length` says, with the `place` of the rank in the message."""

    def __init__(
        self,
        phase: str,
        place: str,
        length: int | None,
        *,
        is_training: bool,
        is_epoch_one_pass: bool,
    ) -> None:
        self.count = 0
        """Batches of the pass so far."""
        self._phase = phase
        self._place = place
        self._length = length
        self._is_training = is_training
        self._is_epoch_one_pass = is_epoch_one_pass
        self._has_warned = False

    @property
    def is_complete(self) -> bool:
        """True after the last batch of a pass; False if its length is unknown."""
        return self.count == self._length

    def begin(self, count: int) -> None:
        """Begin a pass, or the rest of one after `count` batches."""
        self.count = count

    def add(self) -> None:
        """Count a batch."""
        self.count += 1
        if self._length is not None and self.count > self._length:
            self._warn(f"more than {self._length}", "an epoch leaves out the rest")

    def end(self) -> None:
        """End a pass."""
        if self._length is not None and self.count < self._length:
            self._warn(str(self.count), "an epoch repeats the first ones")

    def _warn(self, batches: str, effect: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "The %s dataset has %s batches%s, and %d by its __len__: %s. Correct __len__%s",
            self._phase,
            batches,
            self._place,
            self._length,
            effect if self._is_training and self._is_epoch_one_pass else "all of them count",
            ", or set epoch_steps" if self._is_training else "",
        )
