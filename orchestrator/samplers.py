"""Samplers for `Task.sampler`. They draw from torch's global generator, which the loop seeds for
each epoch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Sampler

from orchestrator.units import format_count


class StratifiedSampler(Sampler[int]):
    """Shuffled order in which every part has the same proportions of labels as the whole dataset.

    `labels` has one label for each sample, shape (N,): whole numbers, or other hashable values.
    """

    def __init__(self, labels: Sequence[Any] | Tensor) -> None:
        values = labels.tolist() if isinstance(labels, Tensor) else list(labels)
        numbers = {label: number for number, label in enumerate(dict.fromkeys(values))}
        self._labels = torch.tensor([numbers[label] for label in values])

    def __iter__(self) -> Iterator[int]:
        keys = torch.empty(len(self), dtype=torch.float64)
        for label in self._labels.unique():
            indices = (self._labels == label).nonzero().squeeze(1)
            indices = indices[torch.randperm(len(indices))]
            # Divide the epoch into as many equal parts as the label has samples, and put one sample
            # into each.
            places = torch.rand(len(indices), dtype=torch.float64)
            keys[indices] = (torch.arange(len(indices)) + places) / len(indices)
        return iter(keys.argsort().tolist())

    def __len__(self) -> int:
        return len(self._labels)


class MixtureSampler(Sampler[int]):
    """Shuffled order of the datasets in a torch `ConcatDataset`, in proportion to their weights.

    Within a dataset, every sample is drawn equally often, up to one. An epoch has `length` samples,
    by default those of the dataset. Raises ValueError unless there is one weight per dataset.
    Source: iMIX's multi-dataset sampling.
    """

    def __init__(
        self, dataset: ConcatDataset[Any], weights: Sequence[float], length: int | None = None
    ) -> None:
        sizes = [len(part) for part in dataset.datasets]  # type: ignore[arg-type]  # each has a length
        if len(weights) != len(sizes) or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
            raise ValueError(
                f"a mixture of {format_count(len(sizes), 'dataset')} needs as many weights, from 0 and not all 0, "
                f"got {list(weights)}"
            )
        self._starts = [0, *dataset.cumulative_sizes[:-1]]
        self._sizes = sizes
        total = len(dataset) if length is None else length
        self._counts = _apportion(total, weights)

    def __iter__(self) -> Iterator[int]:
        parts = []
        for start, size, count in zip(self._starts, self._sizes, self._counts, strict=True):
            if count:
                rounds = [torch.randperm(size) for _ in range(math.ceil(count / size))]
                parts.append(start + torch.cat(rounds)[:count])
        indices = torch.cat(parts)
        return iter(indices[torch.randperm(len(indices))].tolist())

    def __len__(self) -> int:
        return sum(self._counts)


def _apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` into integers in proportion to the weights, by the largest remainder method."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(count) for count in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    return counts
