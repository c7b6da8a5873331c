"""Binning: fewer points that keep the extremes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.tables.query import Rows
from orchestrator.tables.row_blocks import merge_blocks, quote

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
    blocks = rows.aggregate(
        parts, [at], f"{where} and {quote(f'{column} known')} > 0", rows.blocks
    ).reset_index()
    functions = {at: "last", "low": "min", "high": "max", "total": "sum", "known": "sum"}
    table = (
        blocks.groupby(group_neighbors(len(blocks), bins))
        .agg(functions)
        .astype(float)
        .set_index(at)
    )
    return table.assign(mean=table["total"] / table["known"])


def group_neighbors(count: int, max_groups: int) -> Integers:
    """Return the group of each of `count` neighbors, in at most `max_groups` groups of nearly equal
    size."""
    return np.arange(count, dtype=np.int64) * min(count, max_groups) // max(count, 1)


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
        table=rows.blocks,
    ).iloc[0]
    axes, groups_by_axis = [], []
    for name, max_groups in (("rank", max_rows), ("iteration", max_columns)):
        first, last = int(ends[name]), int(ends[f"last_{name}"])
        size = -(-(last - first + 1) // max_groups)
        starts = np.arange(first, last + 1, size)
        axes.append(
            pd.IntervalIndex.from_arrays(starts, np.minimum(starts + size - 1, last), closed="both")
        )
        groups_by_axis.append(f"({name} - {first}) // {size}")
    table = rows.aggregate(
        {name: merge_blocks(name, "high") for name in measures}, groups_by_axis, where, rows.blocks
    )
    down, across = axes
    return {
        name: table[name]
        .unstack()
        .reindex(index=range(len(down)), columns=range(len(across)))
        .set_axis(down)
        .set_axis(across, axis="columns")
        for name in measures
    }
