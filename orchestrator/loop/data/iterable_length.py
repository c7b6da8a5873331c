"""The number of batches of an iterable dataset: those on which the ranks agree, and those that were
read."""

import logging

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
