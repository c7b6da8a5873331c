"""Comparison of the trials of sweeps that have the same values, by paired t tests. Used in the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.sweeps.results.compared_sweep import ComparedSweep, list_parameters
from orchestrator.sweeps.results.ranking import select_candidates
from orchestrator.tables.compared_values import Series, Verdict, summarize
from orchestrator.tables.significance import run_paired_test
from orchestrator.units import is_number


@dataclass(frozen=True)
class PairedDifferences:
    """Differences from the first sweep of trials with the same values; with repeats, also with the
    same seed or repeated value."""

    values: list[float | None]
    """Mean difference of each sweep; None for the first, and without such trials."""
    pairs: list[int | None]
    """Number of pairs of each sweep with the first; None for the first. Trials that have the same
    values, and are not told apart by a repeat, count once, with their mean."""
    findings: list[Verdict | None]
    """None for the first."""


def compare_same_values(
    sweeps: Sequence[ComparedSweep], objectives: Mapping[str, str]
) -> dict[str, PairedDifferences]:
    """Compare the trials of each sweep with those of the first that have the same values.

    Args:
        sweeps: The sweeps.
        objectives: Each metric with its mode.

    Returns:
        The differences by metric, without metrics for which there are no pairs.
    """
    compared = {}
    for metric in objectives:
        first, *others = (_Candidates.select(sweep, metric) for sweep in sweeps)
        differences = [_compute_differences(first, other, metric) for other in others]
        counts = [len(own) for own in differences]
        if any(counts):
            compared[metric] = PairedDifferences(
                values=[None, *summarize(differences, np.mean)],
                pairs=[None, *counts],
                findings=[None, *map(run_paired_test, differences)],
            )
    return compared


class _Candidates(NamedTuple):
    """The trials of a sweep that count, and the column in which its repeats differ."""

    table: pd.DataFrame
    repeated: str

    @classmethod
    def select(cls, sweep: ComparedSweep, metric: str) -> Self:
        return cls(select_candidates(sweep.trials, metric), CONFIG + sweep.repeated_path)

    @property
    def has_repeats(self) -> bool:
        return "configuration" in self.table

    def list_paired_parameters(self, pairs_repeats: bool) -> list[str]:
        """Return the parameters by which trials are paired, without the repeated one if the other
        sweep has no repeats."""
        paths = sorted(list_parameters(self.table))
        if self.has_repeats and not pairs_repeats:
            paths = [path for path in paths if path != self.repeated]
        return paths


def _compute_differences(first: _Candidates, other: _Candidates, metric: str) -> Series:
    """Return the other sweep's metric minus the first's, by values; by values and repeat if both
    sweeps have repeats."""
    pairs_repeats = first.has_repeats and other.has_repeats
    paths = first.list_paired_parameters(pairs_repeats)
    if first.table.empty or other.table.empty or not paths:
        return np.empty(0)
    if paths != other.list_paired_parameters(pairs_repeats):
        return np.empty(0)

    before = _average_by_values(first.table, paths, metric)
    differences = np.asarray(
        _average_by_values(other.table, paths, metric) - before, dtype=np.float64
    )
    return differences[np.isfinite(differences)]


def _average_by_values(table: pd.DataFrame, paths: list[str], metric: str) -> "pd.Series[float]":
    keys = [table[path].map(_make_key) for path in paths]
    return table[metric].groupby(keys).mean()


def _make_key(value: Any) -> str:
    """Return a value as text; the same for 8 and 8.0, as a column with empty cells makes floats of
    whole numbers."""
    if is_number(value) and value == float(value):
        return repr(float(value))
    return str(value)
