"""Binning: fewer points than were recorded, without losing the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.query import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_POSITIONS = 2**21
"""Of more positions than these, neighbours are one."""


@dataclass(frozen=True)
class Envelope:
    """Neighbouring values taken together: for each bin the smallest, the mean and the largest of its values."""

    at: Floats
    """The last position of each bin that holds a value."""
    low: Floats
    mean: Floats
    high: Floats
    count: int
    """How many values there are."""


def envelope(rows: Rows, at: str, value: str, bins: int, where: str = "true") -> Envelope:
    """The finite values of an SQL expression over a column of whole numbers, in at most so many bins of equal numbers of
    positions; what lies at the same position is in one bin.

    Every finite value lies between the `low` and `high` of its bin, and both are values themselves.
    """
    known = f"{where} and isfinite({value})"
    together = _together(rows, at, known)
    aggregates = f"max({at}) as at, min({value}) as low, max({value}) as high, sum({value}) as total, count(*) as count"
    found = rows.ask(f"select {aggregates} from rows where {known} group by {at} // {together} order by 1")
    how = {"at": "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = found.groupby(grouped(len(found), bins)).agg(how).astype(float)
    at_, low, high, total, count = table.to_numpy().T
    return Envelope(at_, low, total / count, high, int(count.sum()))


def _together(rows: Rows, column: str, where: str) -> int:
    """How many neighbouring positions are one."""
    between = rows.aggregate({"all": f"max({column})::bigint - min({column}) + 1"}, where=where)["all"].fillna(0).iloc[0]
    return max(1, -(-int(between) // MOST_POSITIONS))


def grouped(count: int, most: int) -> Integers:
    """Which of at most so many groups, of nearly the same size, each of some neighbours belongs to."""
    return np.arange(count, dtype=np.int64) * min(count, most) // max(count, 1)


@dataclass(frozen=True)
class Grid:
    """A table of numbers made smaller: each cell is the largest of the values that fell into it, and whose it was."""

    values: Floats
    """Shape (row groups, column groups); NaN where there was none."""
    rows: Integers
    """The row that each cell's value came from."""
    columns: Integers
    """The column that each cell's value came from."""
    row_groups: Integers
    """The first and the last row of each group: shape (row groups, 2)."""
    column_groups: Integers
    """The first and the last column of each group: shape (column groups, 2)."""
    most: tuple[int, int]
    """The most rows and columns of a cell."""


def worst_of_bins(rows: Rows, measures: Mapping[str, str], most_rows: int, most_columns: int, where: str = "true") -> dict[str, Grid]:
    """SQL expressions by rank, which are the rows, and iteration, in at most so many groups of neighbours each way."""
    (down, row_groups), (across, column_groups) = (
        _groups(rows, column, most, where) for column, most in (("rank", most_rows), ("iteration", most_columns))
    )
    most = (-(-down // max(1, len(row_groups))), -(-across // max(1, len(column_groups))))
    largest = [f"case when isfinite({value}) then {value} end" for value in measures.values()]
    found = [f"max({value}) as most{place}, arg_max(rank::bigint << 32 | iteration, {value}) as origin{place}" for place, value in enumerate(largest)]
    cells = f"{_place('rank', row_groups)} as down, {_place('iteration', column_groups)} as across"
    table = rows.ask(f"select {', '.join([cells, *found])} from rows where {where} group by down, across")
    grids = {}
    for place, name in enumerate(measures):
        known = table[table[f"most{place}"].notna()]
        at, origin = (known["down"], known["across"]), known[f"origin{place}"].to_numpy(dtype=np.int64)
        values, origins = np.full((len(row_groups), len(column_groups)), np.nan), np.zeros((2, len(row_groups), len(column_groups)), dtype=np.int64)
        values[at] = known[f"most{place}"]
        origins[:, *at] = origin >> 32, origin & (2**32 - 1)
        grids[name] = Grid(values, origins[0], origins[1], row_groups, column_groups, most)
    return grids


def _groups(rows: Rows, column: str, most: int, where: str) -> tuple[int, Integers]:
    """How many positions there are, and the first and the last of each of at most so many groups."""
    together = _together(rows, column, where)
    known = rows.ask(f"select min({column}) as first, max({column}) as last from rows where {where} group by {column} // {together} order by 1")
    ends = known.groupby(grouped(len(known), most)).agg({"first": "min", "last": "max"})
    return len(known) * together, ends.to_numpy(dtype=np.int64)


def _place(column: str, groups: Integers) -> str:
    """The number of the group that a column's value is in, in SQL, by halves."""

    def among(first: int, last: int) -> str:
        if last - first == 1:
            return str(first)
        middle = (first + last) // 2
        return f"case when {column} < {groups[middle, 0]} then {among(first, middle)} else {among(middle, last)} end"

    return among(0, max(1, len(groups)))
