"""The rows that a logger has not read yet."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from hooks.recent import Recent, RecentRows

POSITION_COLUMNS = frozenset({"phase", "epoch", "iteration", "step", "samples", "batch_size"})
"""Columns with the position of a row, which have no statistics."""
MEMORY_PEAK = re.compile(r"_peak_\w+_bytes$")
"""Columns with peaks of memory, which are the largest since the last line."""


class UnreadRows:
    """Reads each value of a phase's rows once. No communication.

    The newest row may be read before it is closed. The columns that it gets when it is closed, such
    as `step_s`, are read with the next rows.

    Args:
        columns: Columns to read; None for all.
        most: Number of values of a column that is enough; None if each value counts.
    """

    def __init__(self, columns: Collection[str] | None, most: int | None) -> None:
        self._columns = columns
        self._most = most
        self._recent: Recent = RecentRows()
        self._total_read = 0
        """Number of closed rows that were read."""
        self._read_early: frozenset[str] = frozenset()
        """Columns that were read from the row after these before it was closed."""

    def start_phase(self, recent: Recent) -> None:
        """Begin with the next row; leave the earlier ones unread."""
        self._recent = recent
        self._total_read = recent.total
        self._read_early = frozenset()

    @property
    def count(self) -> int:
        """Number of closed rows since the last ones that were read."""
        return self._recent.total - self._total_read

    @property
    def has_read_early(self) -> bool:
        """Whether a part of a row was read before it was closed, and nothing since then."""
        return bool(self._read_early)

    def take(self, row: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Read the closed rows, and the row of the current iteration so far.

        Args:
            row: The columns of the current iteration; None if it has none yet.

        Returns:
            The unread values of each column, without None.
        """
        columns = self._take_closed_rows()
        if row:
            for column in self._select(row):
                if column not in self._read_early:
                    columns.setdefault(column, []).append(row[column])
            self._read_early = frozenset(row)

        filled = {}
        for column, values in columns.items():
            filled[column] = [value for value in values if value is not None]
        return filled

    def _take_closed_rows(self) -> dict[str, list[Any]]:
        count = self.count
        if not count:
            return {}

        closed = self._recent.columns(count, names=self._columns, most=self._most)
        if self._most:
            peaks = [*filter(MEMORY_PEAK.search, closed)]
            closed |= self._recent.columns(count, names=peaks)
        columns = {column: closed[column] for column in self._select(closed)}
        for column in self._read_early & columns.keys():
            # With `most`, the first row may be missing.
            if len(columns[column]) == count:
                del columns[column][0]

        self._total_read += count
        self._read_early = frozenset()
        return columns

    def _select(self, columns: Collection[str]) -> list[str]:
        """Return the columns that have statistics, in their order."""
        limit = self._columns
        return [
            column
            for column in columns
            if column not in POSITION_COLUMNS and (limit is None or column in limit)
        ]
