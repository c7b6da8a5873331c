"""Binning: fewer points than were recorded, without losing the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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
        known[ends],
        np.minimum.reduceat(numbers, starts),
        sums / counts,
        np.maximum.reduceat(numbers, starts),
        int((~finite).sum()),
    )


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


def worst_of_bins(
    rows: ArrayLike, columns: ArrayLike, measures: Mapping[str, ArrayLike], most_rows: int, most_columns: int
) -> dict[str, Grid]:
    """Each measure of a long table, by row and column, in at most so many groups of neighbours each way.

    A pair of row and column stands once in the table, or not at all.
    """
    row_names, row = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
    column_names, column = np.unique(np.asarray(columns, dtype=np.int64), return_inverse=True)
    own_row, own_column = grouped(len(row_names), most_rows), grouped(len(column_names), most_columns)
    found = {}
    for name, values in measures.items():
        numbers = np.asarray(values, dtype=float)
        whole = np.full((len(row_names), len(column_names)), -np.inf)
        whole[row, column] = np.where(np.isfinite(numbers), numbers, -np.inf)
        found[name] = _shrunk(whole, row_names, column_names, own_row, own_column)
    return found


def _shrunk(
    whole: Floats, row_names: Integers, column_names: Integers, own_row: Integers, own_column: Integers
) -> Grid:
    largest = np.maximum.reduceat(whole, np.flatnonzero(np.diff(own_row, prepend=-1)), axis=0)
    largest = np.maximum.reduceat(largest, np.flatnonzero(np.diff(own_column, prepend=-1)), axis=1)
    of_row, of_column = np.zeros(largest.shape, dtype=np.int64), np.zeros(largest.shape, dtype=np.int64)
    # Of equal values the first one is told: what is written last stays.
    at_row, at_column = (places[::-1] for places in np.nonzero(whole == largest[own_row][:, own_column]))
    cells = own_row[at_row], own_column[at_column]
    of_row[cells], of_column[cells] = row_names[at_row], column_names[at_column]
    return Grid(
        np.where(np.isfinite(largest), largest, np.nan),
        of_row,
        of_column,
        _ends(row_names, own_row),
        _ends(column_names, own_column),
    )


def _ends(names: Integers, groups: Integers) -> Integers:
    """The first and the last name of each group."""
    first, last = np.diff(groups, prepend=-1) > 0, np.diff(groups, append=groups[-1] + 1) > 0
    return np.stack([names[first], names[last]], axis=1)
