"""Binning: fewer points, without losing the extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.aggregate.row_blocks import high, known, low, quote, total
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
    blocks = rows.aggregate(parts, [at], f"{where} and {quote(f'{column} known')} > 0", rows.blocks).reset_index()
    how = {at: "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = blocks.groupby(group_neighbours(len(blocks), bins)).agg(how).astype(float)
    at_, lowest, highest, sums, count = table.to_numpy().T
    return Envelope(at_, lowest, sums / count, highest, int(count.sum()))


def group_neighbours(count: int, most: int) -> Integers:
    """Return the group of each of `count` neighbors, in at most `most` groups of nearly equal size."""
    return np.arange(count, dtype=np.int64) * min(count, most) // max(count, 1)


@dataclass(frozen=True)
class Grid:
    """The largest values of groups of ranks (rows) and of iterations (columns)."""

    values: Floats
    """Shape (row groups, column groups); NaN without a value."""
    rows: Integers
    """First and last rank of each group: shape (row groups, 2)."""
    columns: Integers
    """First and last iteration of each group: shape (column groups, 2)."""


def worst_of_bins(
    rows: Rows, measures: Sequence[str], most_rows: int, most_columns: int, where: str = "true"
) -> dict[str, Grid]:
    """Return the largest values of columns by rank and iteration, in groups of equally many of each."""
    ends = rows.aggregate(
        {"rank": "min(rank)", "last_rank": "max(rank)", "iteration": "min(first)", "last_iteration": "max(iteration)"},
        where=where,
        of=rows.blocks,
    ).iloc[0]
    axes = {
        "rank": _groups(int(ends["rank"]), int(ends["last_rank"]), most_rows),
        "iteration": _groups(int(ends["iteration"]), int(ends["last_iteration"]), most_columns),
    }
    # A position's group, as `_groups` has it: (position - first) * groups // positions, rounded up.
    places = [
        f"(({name} - {groups[0, 0]} + 1) * {len(groups)} - 1) // {groups[-1, 1] - groups[0, 0] + 1}"
        for name, groups in axes.items()
    ]
    table = rows.aggregate({name: high(name) for name in measures}, places, where, rows.blocks)
    cells = tuple(np.array([*table.index], dtype=int).reshape(-1, 2).T)
    grids = {}
    for name in measures:
        values = np.full((len(axes["rank"]), len(axes["iteration"])), np.nan)
        values[cells] = table[name]
        grids[name] = Grid(values, axes["rank"], axes["iteration"])
    return grids


def _groups(first: int, last: int, most: int) -> Integers:
    """Return the first and last position of each of at most `most` groups of nearly equal size."""
    count = last - first + 1
    ends = first - 1 + np.arange(min(count, most) + 1, dtype=np.int64) * count // min(count, most)
    return np.stack([ends[:-1] + 1, ends[1:]], axis=1)
