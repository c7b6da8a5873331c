"""The number of batches of an iterable dataset: those of a rank in a pass, and in an epoch."""

import logging
import math

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.data import get_length
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.iterable_shard import Share
from orchestrator.loop.world import World

logger = logging.getLogger("hookyard")


def count_batches(
    share: Share, world: World, batch_size: int, num_workers: int, *, drop_last: bool
) -> int | None:
    """Return the number of this rank's batches in a pass; None if unknown."""
    samples = get_length(share.source)
    if samples is None:
        return None
    shards = [samples]
    if not share.shards_itself:
        # Each loader process of each rank makes batches of its own samples.
        count = world.world_size * (num_workers or 1)
        own = range(world.rank, count, world.world_size)
        shards = [math.ceil((samples - first) / count) for first in own]
    if drop_last:
        return sum(shard // batch_size for shard in shards)
    return sum(math.ceil(shard / batch_size) for shard in shards)


def agree_on_length(own: int | None, world: World, *, is_smallest: bool) -> int | None:
    """Return the largest number of batches of any rank, or the smallest; None if unknown.
    Collective."""
    lengths: list[int | None] = world.gather(own)
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return min(known) if is_smallest else max(known)


def choose_epoch_length(experiment: Experiment, pass_length: int | None) -> int:
    """Return the batches of a rank in an epoch of training; raises ConfigError if they are
    unknown."""
    if experiment.epoch_steps is not None:
        return experiment.epoch_steps * experiment.micro_batches
    if pass_length is not None:
        if pass_length == 0:
            raise ConfigError.at(
                "batch_size",
                f"is {experiment.batch_size}, but the train dataset fills no such batch on a rank",
            )
        return pass_length
    if experiment.steps is None:
        raise ConfigError.at(
            "epochs",
            "needs epoch_steps, as the train data is an iterable dataset without __len__; or set steps instead",
        )
    return experiment.steps * experiment.micro_batches


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
        self.count: int | None = None
        """Batches of the pass so far; None after a restore, because they are unknown."""
        self._phase = phase
        self._place = place
        self._length = length
        self._is_training = is_training
        self._is_epoch_one_pass = is_epoch_one_pass
        self._has_warned = False

    def begin(self, *, is_from_start: bool) -> None:
        """Begin a pass, or the rest of one."""
        self.count = 0 if is_from_start else None

    def add(self) -> None:
        """Count a batch."""
        if self.count is None:
            return
        self.count += 1
        if self._length is not None and self.count > self._length:
            self._warn(f"more than {self._length}", "an epoch leaves out the rest")

    def end(self) -> None:
        """End a pass."""
        if self.count is not None and self._length is not None and self.count < self._length:
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
