"""Binning: fewer points that keep the extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.aggregate.row_blocks import quote, select_high, select_known, select_low, select_total
from orchestrator.stats.read.query import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Envelope:
    """Smallest, mean and largest value of each bin."""

    at: Floats
    """Last position of each bin."""
    low: Floats
    mean: Floats
    high: Floats
    count: int
    """Number of values."""


def compute_envelope(rows: Rows, at: str, column: str, bins: int, where: str = "true") -> Envelope:
    """Return the finite values of a column over `iteration` or `step`, in bins of equally many positions.

    In a long run, a position is the end of a block.
    """
    parts = {
        "low": select_low(column),
        "high": select_high(column),
        "total": select_total(column),
        "count": select_known(column),
    }
    blocks = rows.aggregate(parts, [at], f"{where} and {quote(f'{column} known')} > 0", rows.blocks).reset_index()
    functions = {at: "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = blocks.groupby(group_neighbors(len(blocks), bins)).agg(functions).astype(float)
    positions, low, high, sums, count = table.to_numpy().T
    return Envelope(positions, low, sums / count, high, int(count.sum()))


def group_neighbors(count: int, max_groups: int) -> Integers:
    """Return the group of each of `count` neighbors, in at most `max_groups` groups of nearly equal size."""
    return np.arange(count, dtype=np.int64) * min(count, max_groups) // max(count, 1)


@dataclass(frozen=True)
class Grid:
    """Largest values of groups of ranks (rows) and iterations (columns)."""

    values: Floats
    """Shape (row groups, column groups); NaN if a cell has no value."""
    rows: Integers
    """First and last rank of each group: shape (row groups, 2)."""
    columns: Integers
    """First and last iteration of each group: shape (column groups, 2)."""


def compute_max_per_bin(
    rows: Rows, measures: Sequence[str], max_rows: int, max_columns: int, where: str = "true"
) -> dict[str, Grid]:
    """Return the largest values of columns, in groups of equally many ranks and of equally many iterations."""
    ends = rows.aggregate(
        {"rank": "min(rank)", "last_rank": "max(rank)", "iteration": "min(first)", "last_iteration": "max(iteration)"},
        where=where,
        table=rows.blocks,
    ).iloc[0]
    axes = {
        "rank": _divide(int(ends["rank"]), int(ends["last_rank"]), max_rows),
        "iteration": _divide(int(ends["iteration"]), int(ends["last_iteration"]), max_columns),
    }
    # The group that `_divide` puts a position in: (position - first) * groups // positions, rounded up.
    groups_by_axis = [
        f"(({name} - {groups[0, 0]} + 1) * {len(groups)} - 1) // {groups[-1, 1] - groups[0, 0] + 1}"
        for name, groups in axes.items()
    ]
    table = rows.aggregate({name: select_high(name) for name in measures}, groups_by_axis, where, rows.blocks)
    cells = tuple(np.array([*table.index], dtype=int).reshape(-1, 2).T)
    grids = {}
    for name in measures:
        values = np.full((len(axes["rank"]), len(axes["iteration"])), np.nan)
        values[cells] = table[name]
        grids[name] = Grid(values, axes["rank"], axes["iteration"])
    return grids


def _divide(first: int, last: int, max_groups: int) -> Integers:
    """Return the first and last position of each of at most `max_groups` groups of nearly equal size."""
    count = last - first + 1
    ends = first - 1 + np.arange(min(count, max_groups) + 1, dtype=np.int64) * count // min(count, max_groups)
    return np.stack([ends[:-1] + 1, ends[1:]], axis=1)
