"""Batches of one rank's rows, and its last rows."""

from array import array
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hooks.recent import Recent

Layout = Mapping[str, Callable[[NDArray[np.float64]], NDArray[Any]]]
"""Function per column that computes it from numbers of shape (rows, width)."""


class RowBatch:
    """Rows of one phase that are flushed together: numbers in a flat array, and the hooks' values
    in dicts."""

    __slots__ = ("added", "count", "labels", "layout", "numbers")

    def __init__(self, labels: Mapping[str, Any], layout: Layout) -> None:
        self.labels = labels
        self.layout = layout
        self.numbers = array("d")
        self.added: dict[int, dict[str, Any]] = {}
        self.count = 0

    def append(self, packed: bytes, added: dict[str, Any] | None) -> None:
        """Add a row.

        Args:
            packed: Its numbers as doubles, as many as every row of the batch has.
            added: Values from hooks, if there are any.
        """
        self.numbers.frombytes(packed)  # a fifth of the time of `extend`
        if added:
            self.added[self.count] = added
        self.count += 1

    def columns(
        self, first: int = 0, names: Container[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of numbers from row `first` on; only those in `names` if given."""
        width = len(self.numbers) // max(1, self.count)
        # A copy, because an exported array cannot grow.
        numbers = np.frombuffer(self.numbers[first * width :]).reshape(self.count - first, width)
        return {
            name: compute(numbers)
            for name, compute in self.layout.items()
            if names is None or name in names
        }

    def to_lists(
        self, first: int, names: Container[str] | None = None, most: int | None = None
    ) -> dict[str, list[Any]]:
        """Return all columns as lists from row `first` on; None in rows to which a hook added
        nothing.

        Columns of numbers have at most the last `most` rows.
        """
        count = self.count - first
        columns = {
            name: [value] * count
            for name, value in self.labels.items()
            if names is None or name in names
        }
        first_number = first if most is None else max(first, self.count - most)
        numbers = self.columns(first_number, names)
        columns |= {name: values.tolist() for name, values in numbers.items()}
        self._add_recorded(columns, first, names)
        return columns

    def _add_recorded(
        self, columns: dict[str, list[Any]], first: int, names: Container[str] | None
    ) -> None:
        """Add the values that hooks recorded from row `first` on, in columns of their own."""
        newest_first = takewhile(lambda item: item[0] >= first, reversed(self.added.items()))
        rows = dict(reversed(list(newest_first)))
        for name in dict.fromkeys(chain.from_iterable(rows.values())):
            if name in columns or (names is not None and name not in names):
                continue
            values: list[Any] = [None] * (self.count - first)
            for index, row in rows.items():
                values[index - first] = row.get(name)
            columns[name] = values


class RecentBatches(Recent):
    """Recent rows of a recorder, in its batches."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._dropped = 0
        self._batches: deque[RowBatch] = deque()

    def begin(self, batch: RowBatch) -> None:
        """Make `batch` the newest batch, and drop old ones."""
        if self._batches and self._batches[-1].count == 0:
            self._batches.pop()
        self._batches.append(batch)
        while self._row_count() - self._batches[0].count >= self._length:
            self._dropped += self._batches.popleft().count

    @property
    def total(self) -> int:
        return self._dropped + self._row_count()

    def __len__(self) -> int:
        return min(self._length, self._row_count())

    def columns(
        self,
        count: int,
        phase: str | None = None,
        names: Container[str] | None = None,
        most: int | None = None,
    ) -> dict[str, list[Any]]:
        batches = list(self._newest(min(count, self._length), phase))
        batches.reverse()
        if len(batches) == 1:
            [(batch, first)] = batches
            return batch.to_lists(first, names, most)

        columns: dict[str, list[Any]] = {}
        rows = 0
        for batch, first in batches:
            for name, values in batch.to_lists(first, names).items():
                if name not in columns:
                    columns[name] = [None] * rows
                columns[name].extend(values)
            rows += batch.count - first
            for column in columns.values():
                column.extend([None] * (rows - len(column)))
        return columns

    def _newest(self, count: int, phase: str | None) -> Iterator[tuple[RowBatch, int]]:
        """Yield the batches with the last `count` rows, newest first, and the first of these rows
        in each."""
        for batch in reversed(self._batches):
            if count <= 0:
                return
            if batch.count and phase in (None, batch.labels.get("phase")):
                yield batch, max(0, batch.count - count)
                count -= batch.count

    def _row_count(self) -> int:
        return sum(batch.count for batch in self._batches)
