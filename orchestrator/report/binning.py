"""Binning: fewer points than were recorded, without losing the extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.aggregate.blocks import high, known, low, quoted, total
from orchestrator.stats.read.query import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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


def envelope(rows: Rows, at: str, column: str, bins: int, where: str = "true") -> Envelope:
    """The finite values of a column over `iteration` or `step`, in at most so many bins of equal numbers of positions;
    what lies at the same position is in one bin. Of a long run a position is that of a block.

    Every finite value lies between the `low` and `high` of its bin, and both are values themselves.
    """
    parts = {"low": low(column), "high": high(column), "total": total(column), "count": known(column)}
    found = rows.aggregate(parts, [at], f"{where} and {quoted(f'{column} known')} > 0", rows.blocks).reset_index()
    how = {at: "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = found.groupby(grouped(len(found), bins)).agg(how).astype(float)
    at_, lowest, highest, sums, count = table.to_numpy().T
    return Envelope(at_, lowest, sums / count, highest, int(count.sum()))


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


def worst_of_bins(
    rows: Rows, measures: Sequence[str], most_rows: int, most_columns: int, where: str = "true"
) -> dict[str, Grid]:
    """Columns by rank, which are the rows, and iteration, in at most so many groups of neighbours each way. Of a long
    run an iteration is the last of a block."""
    (row_groups, most_down), (column_groups, most_across) = (
        _groups(rows, column, first, most, where)
        for column, first, most in (("rank", "rank", most_rows), ("iteration", "first", most_columns))
    )
    found = [
        f"{high(name)} as most{place}, arg_max(rank::bigint << 32 | iteration, {quoted(f'{name} high')}) as"
        f" origin{place}"
        for place, name in enumerate(measures)
    ]
    cells = f"{_place('rank', row_groups)} as down, {_place('iteration', column_groups)} as across"
    table = rows.ask(f"select {', '.join([cells, *found])} from {rows.blocks} where {where} group by down, across")
    grids = {}
    for place, name in enumerate(measures):
        of_value = table[table[f"most{place}"].notna()]
        at, origin = (of_value["down"], of_value["across"]), of_value[f"origin{place}"].to_numpy(dtype=np.int64)
        values, origins = (
            np.full((len(row_groups), len(column_groups)), np.nan),
            np.zeros((2, len(row_groups), len(column_groups)), dtype=np.int64),
        )
        values[at] = of_value[f"most{place}"]
        origins[:, *at] = origin >> 32, origin & (2**32 - 1)
        grids[name] = Grid(values, origins[0], origins[1], row_groups, column_groups, (most_down, most_across))
    return grids


def _groups(rows: Rows, column: str, first: str, most: int, where: str) -> tuple[Integers, int]:
    """The first and the last position of each of at most so many groups, and how many the largest has; `first` is where
    a block begins."""
    found = rows.aggregate({"first": f"min({first})"}, [column], where, rows.blocks).reset_index(names="last")
    found["count"] = found["last"] - found["first"] + 1
    ends = found.groupby(grouped(len(found), most)).agg({"first": "min", "last": "max", "count": "sum"})
    return ends[["first", "last"]].to_numpy(dtype=np.int64), int(ends["count"].max()) if len(ends) else 0


def _place(column: str, groups: Integers) -> str:
    """The number of the group that a column's value is in, in SQL, by halves."""

    def among(first: int, last: int) -> str:
        if last - first == 1:
            return str(first)
        middle = (first + last) // 2
        return f"case when {column} < {groups[middle, 0]} then {among(first, middle)} else {among(middle, last)} end"

    return among(0, max(1, len(groups)))
