"""Binning: fewer points than were recorded, without losing the extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Envelope:
    """Neighbouring values taken together: for each bin the smallest, the mean and the largest of its values."""

    at: Floats
    """The last place of each bin that holds a value."""
    low: Floats
    mean: Floats
    high: Floats
    left_out: int
    """How many values were not finite."""


def envelope(at: ArrayLike, values: ArrayLike, bins: int) -> Envelope:
    """Values at places, in at most so many bins of equal numbers of places; what lies at the same place is in one bin.

    Every finite value lies between the `low` and `high` of its bin, and both are values themselves.
    """
    places, numbers = np.asarray(at, dtype=float), np.asarray(values, dtype=float)
    finite = np.isfinite(numbers)
    places, numbers = places[finite], numbers[finite]
    if not len(numbers):
        empty = np.empty(0)
        return Envelope(empty, empty, empty, empty, int((~finite).sum()))
    known, index = np.unique(places, return_inverse=True)
    own = grouped(len(known), bins)
    order = np.argsort(index, kind="stable")
    member, numbers = own[index[order]], numbers[order]
    starts = np.flatnonzero(np.diff(member, prepend=-1))
    ends = np.flatnonzero(np.diff(own, append=own[-1] + 1))
    counts = np.diff(starts, append=len(numbers))
    sums = np.add.reduceat(numbers, starts)
    return Envelope(
        known[ends], np.minimum.reduceat(numbers, starts), sums / counts, np.maximum.reduceat(numbers, starts), int((~finite).sum())
    )


def grouped(count: int, most: int) -> NDArray[np.int64]:
    """Which of at most so many groups, of nearly the same size, each of some neighbours belongs to."""
    return np.arange(count, dtype=np.int64) * min(count, most) // max(count, 1)


@dataclass(frozen=True)
class Grid:
    """A table of numbers made smaller: each cell is the largest of the values that fell into it, and whose it was."""

    values: Floats
    """Shape (row groups, column groups); NaN where there was none."""
    rows: NDArray[np.int64]
    """The row that each cell's value came from."""
    columns: NDArray[np.int64]
    """The column that each cell's value came from."""
    row_groups: NDArray[np.int64]
    """The first and the last row of each group: shape (row groups, 2)."""
    column_groups: NDArray[np.int64]
    """The first and the last column of each group: shape (column groups, 2)."""


def worst_of_bins(rows: ArrayLike, columns: ArrayLike, values: ArrayLike, most_rows: int, most_columns: int) -> Grid:
    """The values of a long table, by row and column, in at most so many groups of neighbours each way."""
    numbers = np.asarray(values, dtype=float)
    row_names, row = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
    column_names, column = np.unique(np.asarray(columns, dtype=np.int64), return_inverse=True)
    own_row, own_column = grouped(len(row_names), most_rows), grouped(len(column_names), most_columns)
    shape = (int(own_row[-1]) + 1, int(own_column[-1]) + 1)
    known = np.flatnonzero(np.isfinite(numbers))
    cell = own_row[row[known]] * shape[1] + own_column[column[known]]
    order = np.lexsort((numbers[known], cell))
    last = np.flatnonzero(np.diff(cell[order], append=-1))
    best = known[order[last]]
    found = np.full(shape, np.nan)
    from_row, from_column = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    place = cell[order[last]]
    found.flat[place], from_row.flat[place], from_column.flat[place] = numbers[best], row_names[row[best]], column_names[column[best]]
    return Grid(found, from_row, from_column, _ends(row_names, own_row), _ends(column_names, own_column))


def _ends(names: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first and the last name of each group."""
    first, last = np.diff(groups, prepend=-1) > 0, np.diff(groups, append=groups[-1] + 1) > 0
    return np.stack([names[first], names[last]], axis=1)
