"""Comparisons as text: a table of each kind of difference, with a column for each run or sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hooks.metrics.direction import explain_unknown_direction
from orchestrator import units
from orchestrator.sweeps.results.comparison import SweepComparison
from orchestrator.sweeps.results.paired_comparison import PairedDifferences
from orchestrator.tables.compared_values import ComparedValues, ValueChange
from orchestrator.tables.run_comparison import RunComparison

_DOUBTS = {"noise": "noise", "unknown": "?"}
"""Note beside a change, by the verdict on it."""
_EXPLANATION = "?: too few values to tell from noise"


@dataclass(frozen=True)
class DifferencesTable:
    """A table of one kind of difference."""

    title: str
    rows: list[tuple[str, ...]]
    """The name of what is compared, and the value of each run or sweep."""
    empty: str
    """What to say if there are no rows."""


@dataclass(frozen=True)
class ComparisonText:
    """The text of a comparison. Its values may quote stored runs."""

    names: list[str]
    """Names of the runs or sweeps, the headings of the tables."""
    summary: str
    """The names with their numbers of ranks or trials."""
    tables: list[DifferencesTable]
    notes: list[str]
    """Explanations of what the tables show or lack."""


def describe_comparison(comparison: RunComparison | SweepComparison) -> ComparisonText:
    if isinstance(comparison, RunComparison):
        return _describe_runs(comparison)
    return _describe_sweeps(comparison)


def _describe_runs(comparison: RunComparison) -> ComparisonText:
    notes = []
    if _is_any_change_undecided(comparison.metrics, comparison.costs):
        notes.append(_EXPLANATION)
    if comparison.not_known:
        notes.append(explain_unknown_direction(comparison.not_known))
    return ComparisonText(
        names=comparison.runs,
        summary=_summarize(
            comparison.runs, [units.format_count(ranks, "rank") for ranks in comparison.ranks]
        ),
        tables=[
            _make_settings_table("config", comparison.config, "no difference"),
            _make_settings_table("environment", comparison.environment, "no difference"),
            _make_changes_table("metrics", comparison.metrics),
            _make_changes_table("costs", comparison.costs),
        ],
        notes=notes,
    )


def _describe_sweeps(comparison: SweepComparison) -> ComparisonText:
    is_undecided = _is_any_change_undecided(
        comparison.metrics, comparison.costs
    ) or _is_any_pair_undecided(comparison.same_values)
    return ComparisonText(
        names=comparison.sweeps,
        summary=_summarize(comparison.sweeps, [*map(_format_trials, comparison.trials)]),
        tables=[
            _make_settings_table("config", comparison.config, "no difference"),
            _make_settings_table("environment", comparison.environment, "no difference"),
            _make_settings_table("best trial", comparison.chosen, "no values"),
            _make_changes_table("metrics", comparison.metrics),
            _make_pairs_table(comparison.same_values),
            _make_changes_table("costs", comparison.costs),
        ],
        notes=[_EXPLANATION] if is_undecided else [],
    )


def _summarize(names: Sequence[str], counts: Sequence[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in zip(names, counts, strict=True))


def _format_trials(trials: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in trials.items()) or "no trial"


def _is_any_change_undecided(*groups: Mapping[str, ComparedValues]) -> bool:
    entries = chain.from_iterable(group.values() for group in groups)
    changes = chain.from_iterable(entry.changes for entry in entries)
    return any(change.is_undecided for change in changes)


def _is_any_pair_undecided(paired: Mapping[str, PairedDifferences]) -> bool:
    shown = chain.from_iterable(
        zip(differences.values, differences.findings, strict=True)
        for differences in paired.values()
    )
    return any(value is not None and verdict == "unknown" for value, verdict in shown)


# Tables


def _make_settings_table(
    title: str, settings: Mapping[str, Sequence[Any]], empty: str
) -> DifferencesTable:
    rows = [(path, *map(_format_setting, values)) for path, values in settings.items()]
    return DifferencesTable(title, rows, empty)


def _format_setting(value: Any) -> str:
    # With four digits, different values could look equal.
    exact = units.format_in_full(value) if units.is_number(value) else value
    return units.format_value("", exact) or "-"


def _make_changes_table(title: str, compared: Mapping[str, ComparedValues]) -> DifferencesTable:
    rows = []
    for name, entry in compared.items():
        cells = [_format_change(name, change) for change in entry.changes]
        rows.append((name, *cells))
    return DifferencesTable(title, rows, "none yet")


def _format_change(name: str, change: ValueChange) -> str:
    """Format a value, with its change from the first."""
    if change.value is None:
        return "-"
    shown = units.format_value(name, change.value) or "nan"
    difference = change.difference
    if difference is None:
        return shown
    if difference == 0:
        return f"{shown} (equal)"
    remarks = []
    if change.first:
        remarks.append(f"{difference / abs(change.first):+.1%}")
    if change.verdict in _DOUBTS:
        remarks.append(_DOUBTS[change.verdict])
    return f"{shown} ({', '.join(remarks)})" if remarks else shown


def _make_pairs_table(paired: Mapping[str, PairedDifferences]) -> DifferencesTable:
    rows = [(metric, *_format_pairs(differences)) for metric, differences in paired.items()]
    return DifferencesTable("pairs with the same values", rows, "no pairs")


def _format_pairs(differences: PairedDifferences) -> list[str]:
    """Format the mean difference of each sweep from the first."""
    cells = []
    for value, pairs, verdict in zip(
        differences.values, differences.pairs, differences.findings, strict=True
    ):
        if value is None or pairs is None:
            cells.append("-")
        else:
            remarks = [units.format_count(pairs, "pair")]
            if verdict in _DOUBTS:
                remarks.append(_DOUBTS[verdict])
            cells.append(f"{value:+.4g} ({', '.join(remarks)})")
    return cells
