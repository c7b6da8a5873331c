"""Checks of iterable datasets, and of loaders that a task returns. A rank makes them for its share."""

import math
from typing import Any

from torch.utils.data import IterableDataset

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.datasets import (
    find_rank_queries,
    get_length,
    has_state,
    is_loader,
    shards_itself,
)
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task, import_stateful_loader


def check_iterable_data(experiment: Experiment, task: Task, phase: str, data: Any) -> None:
    """Raise ConfigError for data that a run with all ranks of the experiment would refuse."""
    if is_loader(data):
        if phase == "train":
            check_loader_has_state(data)
            choose_epoch_length(experiment, get_length(data))
        return

    ranks = experiment.workers.min_count
    num_workers = experiment.loader.num_workers
    check_dataset(data, phase, is_shared=ranks > 1 or num_workers > 0)
    if type(task).loader is Task.loader:
        import_stateful_loader(phase)
    if phase == "train":
        length = count_batches(
            data,
            experiment.batch_size,
            world_size=ranks,
            num_workers=num_workers,
            drop_last=experiment.loader.drop_last,
        )
        choose_epoch_length(experiment, length)


def check_dataset(dataset: Any, phase: str, *, is_shared: bool) -> None:
    """Raise ConfigError for an iterator, and for a dataset that may shard itself, but does not
    declare whether, if several processes share it."""
    name = type(dataset).__name__
    if not isinstance(dataset, IterableDataset) and iter(dataset) is dataset:
        raise ConfigError.at(
            "task",
            f"the {phase} dataset ({name}) is an iterator, which ends after one pass;"
            " return an object whose __iter__ starts over",
        )
    queries = find_rank_queries(dataset) if is_shared else []
    if queries:
        raise ConfigError.at(
            "task",
            f"the {phase} dataset ({name}) calls {' and '.join(queries)} in __iter__, so it may shard itself",
            suggestion="set shards_itself = True on its class if it shards itself among all of them, or False to leave"
            " sharding to the loop",
        )


def check_loader_has_state(loader: Any) -> None:
    """Raise ConfigError if a loader of training data cannot save its position."""
    if not has_state(loader):
        raise ConfigError.at(
            "task",
            f"its train loader ({type(loader).__name__}) has no state_dict, so a run could not resume",
            suggestion="return the dataset, or torchdata's StatefulDataLoader",
        )


def count_batches(
    dataset: Any,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int,
    num_workers: int,
    drop_last: bool,
) -> int | None:
    """Return the number of a rank's batches in a pass; None if unknown."""
    samples = get_length(dataset)
    if samples is None:
        return None
    shards = [samples]
    if not shards_itself(dataset):
        # Each loader process of each rank makes batches of its own samples.
        count = world_size * (num_workers or 1)
        shards = [math.ceil((samples - first) / count) for first in range(rank, count, world_size)]
    if drop_last:
        return sum(shard // batch_size for shard in shards)
    return sum(math.ceil(shard / batch_size) for shard in shards)


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
