"""The last rows of a rank."""

from abc import abstractmethod
from collections import deque
from collections.abc import Container, Mapping, Sequence
from itertools import chain, islice
from typing import Any

RECENT = 1000
"""Number of rows that `State.recent` holds."""


class Recent(Sequence[Mapping[str, Any]]):
    """The last closed rows of a rank, oldest first. Columns are cheaper than single rows."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of all rows so far, including dropped ones."""

    @abstractmethod
    def columns(
        self,
        count: int,
        phase: str | None = None,
        names: Container[str] | None = None,
        most: int | None = None,
    ) -> dict[str, list[Any]]:
        """Return all columns or `names` of the last `count` rows, of one phase or all; None if a
        row lacks a column.

        With `most`, columns that each row has may have only their last `most` values, which is
        cheaper.
        """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _make_rows(self.columns(len(self)))[index]
        back = -index if index < 0 else len(self) - index
        if not 1 <= back <= len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return _make_rows(self.columns(back))[0]


class RecentRows(Recent):
    """Recent rows in memory, for a state whose rows nothing records."""

    def __init__(self) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        self._total = 0

    def append(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._total += 1

    @property
    def total(self) -> int:
        return self._total

    def __len__(self) -> int:
        return len(self._rows)

    def columns(
        self,
        count: int,
        phase: str | None = None,
        names: Container[str] | None = None,
        most: int | None = None,
    ) -> dict[str, list[Any]]:
        newest_first = (
            row for row in reversed(self._rows) if phase is None or row.get("phase") == phase
        )
        rows = list(islice(newest_first, count))
        rows.reverse()

        columns: dict[str, list[Any]] = {}
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if names is None or name in names:
                columns[name] = [row.get(name) for row in rows]
        return columns


def _make_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the rows of columns; a row lacks the columns in which it has None."""
    rows = []
    for values in zip(*columns.values(), strict=True):
        row = zip(columns, values, strict=True)
        rows.append({name: value for name, value in row if value is not None})
    return rows
