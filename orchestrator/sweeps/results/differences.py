"""Differences between runs, or between sweeps: their configs, environments, metrics and costs, and
the text of each value."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from orchestrator import units
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.runs.comparison import compare_runs
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.comparison import compare_sweeps
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.config_differences import find_config_differences

TABLES = {
    "config": ("config", "no difference"),
    "environment": ("environment", "no difference"),
    "chosen": ("best trial", "no values"),
    "metrics": ("metrics", "none yet"),
    "same_values": ("with the same values", "no trials"),
    "costs": ("costs", "none yet"),
}
"""Table of a comparison -> title, and text if it is empty."""


def find_differences(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Compare every run with the first, or every sweep; see `compare_runs` and `compare_sweeps`.

    `environment` has one value per run or sweep for each entry that differs. Raises UsageError if
    there are both runs and sweeps.
    """
    metadata = [folder.read_metadata() for folder in folders]
    are_sweeps = {
        str(folder): bool(run.sweep) for folder, run in zip(folders, metadata, strict=True)
    }
    if len({*are_sweeps.values()}) > 1:
        kinds = ", ".join(
            f"{folder} is a {'sweep' if sweep else 'run'}" for folder, sweep in are_sweeps.items()
        )
        raise UsageError(
            f"{kinds}; compare runs with runs (such as a sweep's trials/trial-0000) and sweeps with sweeps"
        )
    if any(are_sweeps.values()):
        differences = compare_sweeps([Sweep(folder) for folder in folders])
    else:
        differences = compare_runs([Run(folder) for folder in folders])
    environments = [run.describe_environment() for run in metadata]
    differences["environment"] = find_config_differences(environments)
    return differences


def make_headings(differences: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name of each run or sweep with its number of ranks or trials."""
    if "runs" in differences:
        counts = [units.format_count(ranks, "rank") for ranks in differences["ranks"]]
        return [*zip(differences["runs"], counts, strict=True)]
    counts = [_format_counts(trials) for trials in differences["trials"]]
    return [*zip(differences["sweeps"], counts, strict=True)]


def _format_counts(trials: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in trials.items()) or "no trial"


def format_entry(name: str, entry: Any) -> list[str]:
    """Format the value of each run or sweep, with its change from the first."""
    if not isinstance(entry, Mapping):
        # With four digits, different values could look equal.
        exact = [
            units.format_in_full(value) if units.is_number(value) else value for value in entry
        ]
        return [units.format_value("", value) or "-" for value in exact]
    if "trials" in entry:
        rows = zip(entry["values"], entry["trials"], entry["findings"], strict=True)
        return [
            "-"
            if value is None
            else f"{value:+.4g} in {units.format_count(trials, 'trial')}, {finding}"
            for value, trials, finding in rows
        ]
    first = entry["values"][0]
    return [
        _format_change(name, value, first, finding)
        for value, finding in zip(entry["values"], entry["findings"], strict=True)
    ]


def _format_change(name: str, value: float | None, first: float | None, finding: str | None) -> str:
    shown = units.format_value(name, value) or ("-" if value is None else "nan")
    if finding is None or value is None or first is None or not isfinite(value - first):
        return shown
    if value == first:
        return f"{shown} (equal)"
    change = [f"{(value - first) / abs(first):+.1%}"] if first else []
    doubt = {"noise": ["noise"], "unknown": ["?"]}.get(finding, [])
    return f"{shown} ({', '.join([*change, *doubt])})" if change or doubt else shown
