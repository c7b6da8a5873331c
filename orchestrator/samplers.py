"""Samplers for `Task.sampler`: labels kept in proportion, and a mixture of datasets. They draw from torch's global
generator, which the loop sets for each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Sampler


class StratifiedSampler(Sampler[int]):
    """Each sample once, shuffled so that every stretch of the order has the labels in the proportion of the whole.

    `labels` has one for each sample, shape (N,): whole numbers, or anything else that can be compared.
    """

    def __init__(self, labels: Sequence[Any] | Tensor) -> None:
        given = labels.tolist() if isinstance(labels, Tensor) else list(labels)
        numbers = {label: number for number, label in enumerate(dict.fromkeys(given))}
        self._labels = torch.tensor([numbers[label] for label in given])

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
    """Samples of the datasets that a torch `ConcatDataset` joins, so many of each as their weights say, shuffled
    together.

    Of each dataset every sample comes as often as any other, or once more. An epoch has `length` samples, by default
    as many as there are; raises ValueError for weights that are not one for each dataset. Source: iMIX's multi-dataset
    sampling.
    """

    def __init__(self, dataset: ConcatDataset[Any], weights: Sequence[float], length: int | None = None) -> None:
        sizes = [len(one) for one in dataset.datasets]  # type: ignore[arg-type]  # a dataset has a length where it can be joined
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
    """Whole numbers in the proportion of the weights that add up to a total, by largest remainder."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    return counts
