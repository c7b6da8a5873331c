"""The number of batches of an iterable dataset: those of a rank in a pass, and in an epoch."""

import math

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.data import get_length
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.iterable_shard import Share
from orchestrator.loop.world import World


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
