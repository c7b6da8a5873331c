"""The indices of a rank's samples in the dataset of a phase."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from hooks.state import State


def find_sample_indices(state: State, sizes: Sequence[int]) -> Sequence[int]:
    """Return the indices of this rank's samples of the current phase, in the order of the loader.

    Args:
        state: The state of the run.
        sizes: Number of samples in each of the rank's batches.

    Returns:
        The indices of the task's sampler. Of an iterable dataset, they are positions in it.
    """
    loader: Any = state.loaders.get(state.phase)
    sampler: Any = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if hasattr(sampler, "set_epoch"):
        # A sampler without `set_epoch` may return a different order each time.
        count = sum(sizes)
        indices = list(islice(sampler, count + 1))
        if len(indices) == count:
            return indices
    is_iterable = isinstance(getattr(loader, "dataset", None), IterableDataset)
    processes = loader.num_workers if is_iterable else 0
    return _count_positions(state, sizes, max(1, processes))


def _count_positions(state: State, sizes: Sequence[int], readers: int) -> list[int]:
    """Return the positions of this rank's samples in a dataset of which each of its `readers` reads
    every n-th sample; they give a batch in turn."""
    stride = state.world_size * readers
    begins = [state.rank + state.world_size * reader for reader in range(readers)]
    positions: list[int] = []
    for number, size in enumerate(sizes):
        begin = begins[number % readers]
        begins[number % readers] = begin + stride * size
        positions += range(begin, begin + stride * size, stride)
    return positions
