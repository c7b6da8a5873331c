"""Rows: what one rank recorded, in batches as they will be flushed, and the last of it to look back on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

_ABSENT = object()


class Layout(Protocol):
    """What the numbers of a row mean."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""

    def columns(self, numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The columns that numbers of shape (rows, width) stand for."""

    def value(self, name: str, numbers: Sequence[float], first: int) -> Any:
        """One of the columns, of the row whose numbers begin at `first`."""


class NoNumbers:
    """The layout of rows that are dicts alone."""

    names: tuple[str, ...] = ()

    def columns(self, numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        return {}

    def value(self, name: str, numbers: Sequence[float], first: int) -> Any:
        raise KeyError(name)


class Batch:
    """Rows of one phase that are flushed together.

    What every row has is a line of numbers in one flat array, as Python numbers in dicts of their own would each lie
    somewhere else in memory; what a hook added is kept in a dict beside it.
    """

    __slots__ = ("added", "count", "labels", "layout", "names", "numbers")

    def __init__(self, labels: Mapping[str, Any], layout: Layout) -> None:
        self.labels, self.layout, self.names = labels, layout, frozenset(layout.names)
        self.numbers = array("d")
        self.added: dict[int, dict[str, Any]] = {}
        self.count = 0

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the numbers of all rows."""
        return self.layout.columns(np.array(self.numbers, dtype=np.float64).reshape(self.count, -1))


class Row(Mapping[str, Any]):
    """A row of a batch, of which only the columns that are asked for are made."""

    __slots__ = ("_added", "_batch", "_first")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._added = batch, batch.added.get(index)
        self._first = index * (len(batch.numbers) // batch.count)

    def get(self, name: str, default: Any = None) -> Any:
        batch = self._batch
        if name in batch.names:
            return batch.layout.value(name, batch.numbers, self._first)
        if name in batch.labels:
            return batch.labels[name]
        return default if self._added is None else self._added.get(name, default)

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, _ABSENT)
        if value is _ABSENT:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._batch.labels, *self._batch.layout.names, *(self._added or ()))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class Recent(Sequence[Mapping[str, Any]]):
    """The last rows, oldest first."""

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

    def _backwards(self) -> Iterator[Mapping[str, Any]]:
        for batch in reversed(self._batches):
            for index in reversed(range(batch.count)):
                yield Row(batch, index)
