"""Binning: fewer points, without losing the extremes."""

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
    """The smallest, mean and largest value of each bin."""

    at: Floats
    """Last position of each bin."""
    low: Floats
    mean: Floats
    high: Floats
    count: int
    """Number of values."""


def envelope(rows: Rows, at: str, column: str, bins: int, where: str = "true") -> Envelope:
    """Return the finite values of a column over `iteration` or `step`, in bins of equally many positions.

    In a long run a position is that of a block.
    """
    parts = {"low": low(column), "high": high(column), "total": total(column), "count": known(column)}
    blocks = rows.aggregate(parts, [at], f"{where} and {quoted(f'{column} known')} > 0", rows.blocks).reset_index()
    how = {at: "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = blocks.groupby(group_neighbours(len(blocks), bins)).agg(how).astype(float)
    at_, lowest, highest, sums, count = table.to_numpy().T
    return Envelope(at_, lowest, sums / count, highest, int(count.sum()))


def group_neighbours(count: int, most: int) -> Integers:
    """Return the group of each of `count` neighbours, in at most `most` groups of nearly equal size."""
    return np.arange(count, dtype=np.int64) * min(count, most) // max(count, 1)


@dataclass(frozen=True)
class Grid:
    """A smaller table of numbers: each cell has the largest of its values, and where that was."""

    values: Floats
    """Shape (row groups, column groups); NaN without a value."""
    rows: Integers
    """Row of each cell's value."""
    columns: Integers
    """Column of each cell's value."""
    row_groups: Integers
    """First and last row of each group: shape (row groups, 2)."""
    column_groups: Integers
    """First and last column of each group: shape (column groups, 2)."""
    largest: tuple[int, int]
    """Largest numbers of rows and columns of a cell."""


def worst_of_bins(
    rows: Rows, measures: Sequence[str], most_rows: int, most_columns: int, where: str = "true"
) -> dict[str, Grid]:
    """Return the largest values of columns by rank (rows) and iteration (columns), in groups of neighbours."""
    (row_groups, most_down), (column_groups, most_across) = (
        _groups(rows, column, first, most, where)
        for column, first, most in (("rank", "rank", most_rows), ("iteration", "first", most_columns))
    )
    measured = [
        f"{high(name)} as most{place}, arg_max(rank::bigint << 32 | iteration, {quoted(f'{name} high')}) as"
        f" origin{place}"
        for place, name in enumerate(measures)
    ]
    cells = f"{_place('rank', row_groups)} as down, {_place('iteration', column_groups)} as across"
    table = rows.ask(f"select {', '.join([cells, *measured])} from {rows.blocks} where {where} group by down, across")
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
    """Return the first and last position of each group, and the size of the largest group."""
    blocks = rows.aggregate({"first": f"min({first})"}, [column], where, rows.blocks).reset_index(names="last")
    blocks["count"] = blocks["last"] - blocks["first"] + 1
    ends = blocks.groupby(group_neighbours(len(blocks), most)).agg({"first": "min", "last": "max", "count": "sum"})
    return ends[["first", "last"]].to_numpy(dtype=np.int64), int(ends["count"].max()) if len(ends) else 0


def _place(column: str, groups: Integers) -> str:
    """Return the SQL expression for the group of a column's value, by bisection."""

    def among(first: int, last: int) -> str:
        if last - first == 1:
            return str(first)
        middle = (first + last) // 2
        return f"case when {column} < {groups[middle, 0]} then {among(first, middle)} else {among(middle, last)} end"

    return among(0, max(1, len(groups)))
