"""The last rows of a rank, to look back on."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Container, Mapping, Sequence
from itertools import islice
from typing import Any, overload

RECENT = 1000
"""How many rows back `State.recent` reaches."""


class Recent(Sequence[Mapping[str, Any]]):
    """The last closed rows of a rank, oldest first. Worker process.

    Whoever wants more than a row takes columns: rows may be kept as such, and a row is then made to be looked at.
    """

    @property
    @abstractmethod
    def total(self) -> int:
        """How many rows there have been, with those that are forgotten: what tells how many came since."""

    @abstractmethod
    def columns(
        self, count: int, phase: str | None = None, names: Container[str] | None = None
    ) -> dict[str, list[Any]]:
        """The columns of the last `count` rows, or of as many as there are, of one phase or of all; None where a row
        has no such column. Of `names` those that there are: to look at a few costs less."""

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return _rows(self.columns(len(self)))[index]
        back = -index if index < 0 else len(self) - index
        if not 1 <= back <= len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return _rows(self.columns(back))[0]


class KeptRows(Recent):
    """Rows that are kept as they come, where nothing records them."""

    def __init__(self) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        self._total = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Takes a row that is closed."""
        self._rows.append(row)
        self._total += 1

    @property
    def total(self) -> int:
        return self._total

    def __len__(self) -> int:
        return len(self._rows)

    def columns(
        self, count: int, phase: str | None = None, names: Container[str] | None = None
    ) -> dict[str, list[Any]]:
        rows = [*islice((row for row in reversed(self._rows) if phase is None or row.get("phase") == phase), count)][
            ::-1
        ]
        there = dict.fromkeys(name for row in rows for name in row if names is None or name in names)
        return {name: [row.get(name) for row in rows] for name in there}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    rows = zip(*columns.values(), strict=True)
    return [{name: value for name, value in zip(columns, row, strict=True) if value is not None} for row in rows]
