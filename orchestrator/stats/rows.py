"""Rows: what one rank recorded, in batches as they will be flushed, and the last of it to look back on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray


class Layout(Protocol):
    """What the numbers of a row mean."""

    def columns(self, numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The columns that numbers of shape (rows, width) stand for."""


class NoNumbers:
    """The layout of rows that are dicts alone."""

    def columns(self, numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        return {}


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

    def columns(self, start: int = 0, stop: int | None = None) -> dict[str, NDArray[Any]]:
        """The columns of numbers of rows from `start` to `stop`."""
        stop = self.count if stop is None else stop
        width = len(self.numbers) // self.count if self.count else 0
        numbers = np.array(self.numbers[start * width : stop * width], dtype=np.float64)
        return self.layout.columns(numbers.reshape(stop - start, width))

    def rows(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """The rows from `start` to `stop` as dicts."""
        stop = self.count if stop is None else stop
        columns = {name: values.tolist() for name, values in self.columns(start, stop).items()}
        lines = zip(*columns.values(), strict=True) if columns else [()] * (stop - start)
        return [
            {**self.labels, **self.added.get(index, {}), **dict(zip(columns, line, strict=True))}
            for index, line in enumerate(lines, start)
        ]


class Recent(Sequence[Mapping[str, Any]]):
    """The last rows, oldest first, made into dicts when somebody looks; from the end, as many as are looked at."""

    def __init__(self, batches: deque[Batch], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return min(self._length, sum(batch.count for batch in self._batches))

    def __reversed__(self) -> Iterator[Mapping[str, Any]]:
        return islice(self._backwards(), self._length)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter([*reversed(self)][::-1])

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        back = -index if index < 0 else len(self) - index
        if not 1 <= back <= len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return next(islice(self._backwards(), back - 1, None))

    def _backwards(self, step: int = 32) -> Iterator[Mapping[str, Any]]:
        for batch in reversed(self._batches):
            for stop in range(batch.count, 0, -step):
                yield from reversed(batch.rows(max(0, stop - step), stop))
