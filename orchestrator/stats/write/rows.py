"""Rows: what one rank recorded, in batches as they will be flushed, and the last of it to look back on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hooks.recent_rows import Recent

Layout = Mapping[str, Callable[[NDArray[np.float64]], NDArray[Any]]]
"""What the numbers of rows mean: the columns, and what makes each of numbers of shape (rows, width)."""


class Batch:
    """Rows of one phase that are flushed together.

    What every row has is a line of numbers in one flat array, as Python numbers in dicts of their own would each lie
    somewhere else in memory; what a hook added is kept in a dict beside it.
    """

    __slots__ = ("added", "count", "labels", "layout", "numbers")

    def __init__(self, labels: Mapping[str, Any], layout: Layout) -> None:
        self.labels, self.layout = labels, layout
        self.numbers = array("d")
        self.added: dict[int, dict[str, Any]] = {}
        self.count = 0

    def columns(self, first: int = 0, names: Container[str] | None = None) -> dict[str, NDArray[Any]]:
        """The columns of the numbers of all rows from `first` on; of `names` those that there are."""
        # A copy: while an array lends its memory, it cannot grow.
        numbers = np.frombuffer(self.numbers[first * (len(self.numbers) // max(1, self.count)) :])
        numbers = numbers.reshape(self.count - first, -1)
        return {name: made(numbers) for name, made in self.layout.items() if names is None or name in names}

    def values(self, first: int, names: Container[str] | None = None) -> dict[str, list[Any]]:
        """What rows have from `first` on, as lists, None where a hook added nothing; of `names` those that there
        are."""
        count = self.count - first
        columns = {name: [value] * count for name, value in self.labels.items() if names is None or name in names}
        columns |= {name: values.tolist() for name, values in self.columns(first, names).items()}
        added = [self.added.get(index, {}) for index in range(first, self.count)] if self.added else []
        for name in dict.fromkeys(chain.from_iterable(added)):
            if names is None or name in names:
                columns.setdefault(name, [row.get(name) for row in added])
        return columns


class Batches(Recent):
    """The last rows of a recorder, as the batches they are in."""

    def __init__(self, length: int) -> None:
        self._length, self._forgotten = length, 0
        self._batches: deque[Batch] = deque()

    def begin(self, batch: Batch) -> None:
        """Rows go into this batch from now on; batches that nobody looks back on any more are forgotten."""
        if self._batches and self._batches[-1].count == 0:
            self._batches.pop()
        self._batches.append(batch)
        while self._kept() - self._batches[0].count >= self._length:
            self._forgotten += self._batches.popleft().count

    @property
    def total(self) -> int:
        return self._forgotten + self._kept()

    def __len__(self) -> int:
        return min(self._length, self._kept())

    def columns(
        self, count: int, phase: str | None = None, names: Container[str] | None = None
    ) -> dict[str, list[Any]]:
        parts = [
            (batch.count - first, batch.values(first, names))
            for batch, first in self._newest(min(count, self._length), phase)
        ][::-1]
        if len(parts) == 1:
            return parts[0][1]
        names = dict.fromkeys(chain.from_iterable(columns for _, columns in parts))
        return {
            name: [*chain.from_iterable(columns.get(name) or [None] * rows for rows, columns in parts)]
            for name in names
        }

    def _newest(self, count: int, phase: str | None) -> Iterator[tuple[Batch, int]]:
        """The batches that hold the last `count` rows, newest first, and the first of its rows that is one of them."""
        for batch in reversed(self._batches):
            if count > 0 and batch.count and phase in (None, batch.labels.get("phase")):
                yield batch, max(0, batch.count - count)
                count -= batch.count

    def _kept(self) -> int:
        return sum(batch.count for batch in self._batches)
