"""A process's share of an iterable dataset, by rank and loader process, and the position in it."""

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from copy import copy, deepcopy
from importlib import import_module
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from hooks.loader_parts import find_parts_with_epoch
from orchestrator.errors import CheckpointError
from orchestrator.experiment.checks.datasets import has_state, is_hugging_face, shards_itself
from orchestrator.private_api.hf_datasets import has_shuffle_buffer, is_split_by_node
from orchestrator.randomness import random_state, restore_random_state, seeded
from orchestrator.units import format_count


class IterableShard(IterableDataset[Any]):
    """This process's samples of an iterable dataset: every n-th, or all if it shards itself.

    Each pass seeds all generators, so a shuffle at its beginning is the same on every rank and in
    every loader process. Without `reseeds`, as in an evaluation, the seed is the same in all
    passes.
    """

    def __init__(
        self, dataset: Any, rank: int, world_size: int, seed: int, *, reseeds: bool = True
    ) -> None:
        self.shards_itself = shards_itself(dataset)
        self.source = _split(dataset, rank, world_size)
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.passes = 0
        """Index of the next pass."""
        self._reorders = False
        self._reseeds = reseeds

    def set_epoch(self, epoch: int) -> None:
        """Use a different order in each pass. The dataset gets the index of the pass, not of the
        epoch."""
        self._reorders = True

    @property
    def order(self) -> int:
        """Return the number for the dataset's `set_epoch`."""
        return self.passes if self._reorders else 0

    @property
    def pass_seed(self) -> int:
        """Return the seed of the generators at the beginning of a pass."""
        return self.seed + (self.order if self._reseeds else 0)

    def __iter__(self) -> Iterator[Any]:
        return _Position(self)


class _Position:
    """Iterator over a share, from its beginning or from a saved position.

    If neither the dataset nor its iterator can save a position, samples are read again up to it.
    """

    def __init__(self, share: IterableShard) -> None:
        self._share = share
        self._dataset = share.source
        info = get_worker_info()
        self._in_process = info is not None
        self._shards = 1
        self._shard = 0
        if not share.shards_itself:
            workers, worker = (info.num_workers, info.id) if info else (1, 0)
            self._shards = share.world_size * workers
            self._shard = share.rank + share.world_size * worker
        self._items: Any = None
        self._read = 0
        for part in find_parts_with_epoch(self._dataset):
            part.set_epoch(share.order)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            item = self._read_next()
            is_own = self._read % self._shards == self._shard
            self._read += 1
            if is_own:
                return item

    def _read_next(self) -> Any:
        """Return the next sample of the dataset.

        A generator function starts running only with the first one, so seed it there.
        """
        if self._items is not None:
            return next(self._items)
        with nullcontext() if self._share.shards_itself else seeded(self._share.pass_seed):
            self._items = iter(self._dataset)
            return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data: samples read, and the state of the iterator or the
        dataset.

        In a loader process, it includes the random state, which is saved nowhere else.
        """
        state: dict[str, Any] = {"read": self._read}
        if self._in_process:
            state["generators"] = pickle.dumps(random_state())
        if self._read and has_state(self._items):
            state["iterator"] = self._items.state_dict()
        elif self._read and has_state(self._dataset) and not has_shuffle_buffer(self._dataset):
            state["dataset"] = self._dataset.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "iterator" in state:
            self._items = iter(self._dataset)
            self._items.load_state_dict(state["iterator"])
        elif "dataset" in state:
            # Load into a copy, because the next pass starts at the dataset's beginning.
            copy_dataset = deepcopy if is_hugging_face(self._dataset) else copy
            self._dataset = copy_dataset(self._dataset)
            self._dataset.load_state_dict(state["dataset"])
            self._items = iter(self._dataset)
        else:
            self._skip(state["read"])
        self._read = state["read"]
        if "generators" in state and self._in_process:
            restore_random_state(pickle.loads(state["generators"]))

    def _skip(self, count: int) -> None:
        """Read the first samples again; raises CheckpointError if there are fewer."""
        for index in range(count):
            try:
                self._read_next()
            except StopIteration:
                raise CheckpointError(
                    f"the train dataset ends after {format_count(index, 'sample')}, but the checkpoint"
                    f" was saved after {count}; resume with the data that it was trained with"
                ) from None


def _split(dataset: Any, rank: int, world_size: int) -> Any:
    """Split a Hugging Face dataset by rank; the dataset splits itself by loader process."""
    if world_size == 1 or not is_hugging_face(dataset) or is_split_by_node(dataset):
        return dataset
    return import_module("datasets.distributed").split_dataset_by_node(dataset, rank, world_size)
