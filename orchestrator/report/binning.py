"""Binning: fewer points than were recorded, without losing the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

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
    left_out: int
    """How many values were not finite."""


def envelope(at: ArrayLike, values: ArrayLike, bins: int) -> Envelope:
    """Values in at most so many bins of equal numbers of positions; what lies at the same position is in one bin.

    Every finite value lies between the `low` and `high` of its bin, and both are values themselves.
    """
    numbers = np.asarray(values, dtype=float)
    finite = np.isfinite(numbers)
    bin_of, ends = _bins(np.asarray(at, dtype=float)[finite], bins)
    low, mean, high = pd.Series(numbers[finite]).groupby(bin_of).agg(["min", "mean", "max"]).to_numpy().T
    return Envelope(ends[:, 1], low, mean, high, int((~finite).sum()))


def grouped(count: int, most: int) -> Integers:
    """Which of at most so many groups, of nearly the same size, each of some neighbours belongs to."""
    return np.arange(count, dtype=np.int64) * min(count, most) // max(count, 1)


def _bins(positions: ArrayLike, most: int) -> tuple[Integers, NDArray[Any]]:
    """The bin of each position, and the first and the last position of each bin: shape (bins, 2)."""
    known, index = np.unique(positions, return_inverse=True)
    groups = grouped(len(known), most)
    return groups[index], pd.Series(known).groupby(groups).agg(["first", "last"]).to_numpy()


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


def worst_of_bins(
    rows: ArrayLike, columns: ArrayLike, measures: Mapping[str, ArrayLike], most_rows: int, most_columns: int
) -> dict[str, Grid]:
    """Each measure of a long table, by row and column, in at most so many groups of neighbours each way."""
    positions = np.asarray([rows, columns], dtype=np.int64)
    row, row_groups = _bins(positions[0], most_rows)
    column, column_groups = _bins(positions[1], most_columns)
    shape = (len(row_groups), len(column_groups))
    cell = row * shape[1] + column
    found = {}
    for name, values in measures.items():
        numbers = pd.Series(np.asarray(values, dtype=float))
        known = numbers[np.isfinite(numbers)]
        at = known.groupby(cell[known.index]).idxmax()
        largest, origin = np.full(shape, np.nan), np.zeros((2, *shape), dtype=np.int64)
        largest.flat[at.index] = known[at]
        origin.reshape(2, -1)[:, at.index] = positions[:, at]
        found[name] = Grid(largest, origin[0], origin[1], row_groups, column_groups)
    return found
