"""Samplers for `Task.sampler`. They draw from torch's global generator, which the loop seeds for each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Sampler


class StratifiedSampler(Sampler[int]):
    """Shuffles the samples so that every part of the order has the labels in the proportion of the whole.

    `labels` has one label for each sample, shape (N,): whole numbers, or other hashable values.
    """

    def __init__(self, labels: Sequence[Any] | Tensor) -> None:
        values = labels.tolist() if isinstance(labels, Tensor) else list(labels)
        numbers = {label: number for number, label in enumerate(dict.fromkeys(values))}
        self._labels = torch.tensor([numbers[label] for label in values])

    def __iter__(self) -> Iterator[int]:
        keys = torch.empty(len(self), dtype=torch.float64)
        for label in self._labels.unique():
            places = (self._labels == label).nonzero().squeeze(1)
            places = places[torch.randperm(len(places))]
            # One in each of as many equal parts of the epoch as there are samples of the label.
            keys[places] = (torch.arange(len(places)) + torch.rand(len(places), dtype=torch.float64)) / len(places)
        return iter(keys.argsort().tolist())

    def __len__(self) -> int:
        return len(self._labels)


class MixtureSampler(Sampler[int]):
    """Shuffles samples of the datasets in a torch `ConcatDataset`, in the proportion of their weights.

    Within a dataset, counts of two samples differ by one at most. An epoch has `length` samples, by default the length
    of the dataset. Raises ValueError unless there is one weight for each. Source: iMIX's multi-dataset sampling.
    """

    def __init__(self, dataset: ConcatDataset[Any], weights: Sequence[float], length: int | None = None) -> None:
        sizes = [len(part) for part in dataset.datasets]  # type: ignore[arg-type]  # each has a length
        if len(weights) != len(sizes) or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
            raise ValueError(
                f"a mixture of {len(sizes)} datasets needs as many weights, from 0 and not all 0, got {list(weights)}"
            )
        self._begins = [0, *dataset.cumulative_sizes[:-1]]
        self._sizes = sizes
        self._counts = _apportioned(len(dataset) if length is None else length, weights)

    def __iter__(self) -> Iterator[int]:
        parts = [
            begin + torch.cat([torch.randperm(size) for _ in range(-(-count // size))])[:count]
            for begin, size, count in zip(self._begins, self._sizes, self._counts, strict=True)
            if count
        ]
        together = torch.cat(parts)
        return iter(together[torch.randperm(len(together))].tolist())

    def __len__(self) -> int:
        return sum(self._counts)


def _apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers in the proportion of the weights that add up to a total, by largest remainder."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(count) for count in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    return counts
