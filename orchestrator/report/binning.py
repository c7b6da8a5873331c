"""Binning: fewer points that keep the extremes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.tables.database import quote
from orchestrator.tables.query import Rows
from orchestrator.tables.row_blocks import merge_blocks

MAX_BINS = 240
"""Maximum number of points of a chart."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def compute_envelope(
    rows: Rows, at: str, column: str, bins: int, where: str = "true"
) -> pd.DataFrame:
    """Return `low`, `mean`, `high` and number (`known`) of a column's finite values, by the last
    position of each bin.

    A position is an `iteration` or `step`, in a long run the end of a block. Bins have equally many
    positions.
    """
    parts = {part: merge_blocks(column, part) for part in ("low", "high", "total", "known")}
    is_known = f"{quote(f'{column} known')} > 0"
    blocks = rows.aggregate(parts, [at], f"{where} and {is_known}", "blocks").reset_index()
    functions = {at: "last", "low": "min", "high": "max", "total": "sum", "known": "sum"}
    groups = blocks.groupby(group_neighbors(len(blocks), bins))
    table = groups.agg(functions).astype(float).set_index(at)
    return table.assign(mean=table["total"] / table["known"])


def group_neighbors(count: int, max_groups: int) -> Integers:
    """Return the group of each of `count` neighbors, in at most `max_groups` groups of nearly equal
    size."""
    return np.arange(count, dtype=np.int64) * min(count, max_groups) // max(count, 1)


def select_with_extremes(values: Floats, max_points: int) -> Integers:
    """Return the places of at most `max_points` values: the first, the last, and the smallest and
    largest of each group of neighbors."""
    if len(values) <= max_points:
        return np.arange(len(values), dtype=np.int64)
    groups = group_neighbors(len(values), (max_points - 2) // 2)
    neighbors = pd.Series(values).groupby(groups)
    places = {0, len(values) - 1, *neighbors.idxmin(), *neighbors.idxmax()}
    return np.array(sorted(places), dtype=np.int64)


def compute_max_per_bin(
    rows: Rows, measures: Sequence[str], max_rows: int, max_columns: int, where: str = "true"
) -> dict[str, pd.DataFrame]:
    """Return tables of the largest values of columns, by groups of equally many ranks, and
    iterations across.

    The last group may be smaller. NaN if a cell has no value.
    """
    ends = rows.aggregate(
        {
            "rank": "min(rank)",
            "last_rank": "max(rank)",
            "iteration": "min(first)",
            "last_iteration": "max(iteration)",
        },
        where=where,
        table="blocks",
    ).iloc[0]
    ranks = _group_axis(int(ends["rank"]), int(ends["last_rank"]), max_rows)
    iterations = _group_axis(int(ends["iteration"]), int(ends["last_iteration"]), max_columns)
    maxima = {name: merge_blocks(name, "high") for name in measures}
    groups = [_make_group_number("rank", ranks), _make_group_number("iteration", iterations)]
    table = rows.aggregate(maxima, groups, where, "blocks")

    grids = {}
    for name in measures:
        grid = table[name].unstack()
        grid = grid.reindex(index=range(len(ranks)), columns=range(len(iterations)))
        grids[name] = grid.set_axis(ranks).set_axis(iterations, axis="columns")
    return grids


def _group_axis(first: int, last: int, max_groups: int) -> pd.IntervalIndex:
    """Return groups of equally many numbers from `first` to `last`."""
    size = -(-(last - first + 1) // max_groups)
    starts = np.arange(first, last + 1, size)
    ends = np.minimum(starts + size - 1, last)
    return pd.IntervalIndex.from_arrays(starts, ends, closed="both")


def _make_group_number(column: str, groups: pd.IntervalIndex) -> str:
    """Return the SQL expression of a column's group."""
    first = groups.left[0]
    size = groups.right[0] - first + 1
    return f"({column} - {first}) // {size}"
