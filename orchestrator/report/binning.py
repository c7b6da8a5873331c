"""Binning: fewer points that keep the extremes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.stats.aggregate.row_blocks import quote, select_high, select_known, select_low, select_total
from orchestrator.stats.read.query import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def compute_envelope(rows: Rows, at: str, column: str, bins: int, where: str = "true") -> pd.DataFrame:
    """Return `low`, `mean`, `high` and `count` of a column's finite values, by the last position of each bin.

    A position is an `iteration` or `step`, in a long run the end of a block. Bins have equally many positions.
    """
    parts = {
        "low": select_low(column),
        "high": select_high(column),
        "total": select_total(column),
        "count": select_known(column),
    }
    blocks = rows.aggregate(parts, [at], f"{where} and {quote(f'{column} known')} > 0", rows.blocks).reset_index()
    functions = {at: "last", "low": "min", "high": "max", "total": "sum", "count": "sum"}
    table = blocks.groupby(group_neighbors(len(blocks), bins)).agg(functions).astype(float).set_index(at)
    return table.assign(mean=table["total"] / table["count"])


def group_neighbors(count: int, max_groups: int) -> Integers:
    """Return the group of each of `count` neighbors, in at most `max_groups` groups of nearly equal size."""
    return np.arange(count, dtype=np.int64) * min(count, max_groups) // max(count, 1)


def compute_max_per_bin(
    rows: Rows, measures: Sequence[str], max_rows: int, max_columns: int, where: str = "true"
) -> dict[str, pd.DataFrame]:
    """Return tables of the largest values of columns, by groups of equally many ranks, and iterations across.

    NaN if a cell has no value.
    """
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
        f"(({name} - {groups.left[0]} + 1) * {len(groups)} - 1) // {groups.right[-1] - groups.left[0] + 1}"
        for name, groups in axes.items()
    ]
    table = rows.aggregate({name: select_high(name) for name in measures}, groups_by_axis, where, rows.blocks)
    down, across = axes.values()
    return {
        name: table[name]
        .unstack()
        .reindex(index=range(len(down)), columns=range(len(across)))
        .set_axis(down)
        .set_axis(across, axis="columns")
        for name in measures
    }


def _divide(first: int, last: int, max_groups: int) -> pd.IntervalIndex:
    """Divide positions into at most `max_groups` groups of nearly equal size."""
    count = last - first + 1
    ends = first - 1 + np.arange(min(count, max_groups) + 1, dtype=np.int64) * count // min(count, max_groups)
    return pd.IntervalIndex.from_arrays(ends[:-1] + 1, ends[1:], closed="both")
