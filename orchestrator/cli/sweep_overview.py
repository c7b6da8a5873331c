"""The overview of a sweep as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import echo, format_cell, print_json, print_table
from orchestrator.cli.run_overview import print_usage_hint
from orchestrator.column_names import CONFIG
from orchestrator.terminal.printable import escape_data
from orchestrator.units import format_count, format_parameter

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.sweeps.results.result import Sweep

_TRIAL_COLUMNS = (
    "status",
    "diverged",
    "leader",
    "reports",
    "step_s",
    "peak_",
    "process_",
    "stopped",
    "infeasible",
    "error",
)
"""Prefixes of the columns of a sweep's table, apart from its values and metrics."""


def print_sweep(sweep: Sweep, as_json: bool) -> None:
    """Print the trials of a sweep, the best first, and their overview."""
    from orchestrator.sweeps.results.overview import describe_sweep
    from orchestrator.sweeps.results.ranking import explain_no_best, sort_best_first

    metric, _ = sweep.objective
    metrics = [name for name, _ in sweep.objectives]
    trials = sort_best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate)
    described = describe_sweep(sweep, trials)
    if as_json:
        print_json({**described, "trials": trials.reset_index().to_dict("records")})
        return

    overview = escape_data(described)
    _print_status(overview, len(trials))
    if overview["best"]:
        _print_best_trial(sweep, trials, overview)
    else:
        echo(f"no best trial: {explain_no_best(trials, metric)}")
    if overview["importance"]:
        _print_importance(overview, metric)
    if overview["pareto"]:
        echo(f"Pareto front of {', '.join(metrics)}: {', '.join(overview['pareto'])}")
    echo("")
    if overview["configurations"]:
        _print_configurations(overview["configurations"], metric)
        echo("")
    _print_trials(trials, metrics)


def _print_status(overview: Mapping[str, Any], trials: int) -> None:
    status = overview["status"]
    if status == "finished" and overview["counts"].get("failed") == trials:
        status = "ended without success"
    line = f"{overview['path']}: {status}, {format_count(trials, 'trial')}"
    counts = [f"{count} {name}" for name, count in overview["counts"].items()]
    if counts:
        line += f": {', '.join(counts)}"
    echo(line)
    if overview["driver"]:
        echo(f"driver: {overview['driver']}")

    shared = overview["shared_training"]
    if shared:
        echo(
            f"{shared['followers']} of {shared['trials']} trials shared another trial's training,"
            f" which saved {format_cell('saved_s', shared['saved_s'])}"
        )


def _print_best_trial(sweep: Sweep, trials: pd.DataFrame, overview: Mapping[str, Any]) -> None:
    metric, _ = sweep.objective
    if overview["configurations"]:
        _print_best_configuration(sweep, trials)
    reached = overview["reached"] or f"{metric} {format_cell(metric, overview['value'])}"
    echo(f"Best: {overview['best'].rpartition('/')[2]}, {reached}")
    if overview["use"]:
        print_usage_hint(overview["use"], has_diverged=False)


def _print_best_configuration(sweep: Sweep, trials: pd.DataFrame) -> None:
    from orchestrator.sweeps.results.ranking import list_configurations
    from orchestrator.tables.configurations import find_better_with_fewer_trials

    metric, mode = sweep.objective
    ordered = list_configurations(trials, metric, mode, sweep.aggregate)
    best = ordered[0]
    echo(f"Best configuration: {best.number} with {metric} {best.describe(metric)}")
    ahead = find_better_with_fewer_trials(ordered, mode)
    if ahead:
        text = ahead.describe(metric)
        echo(f"Configuration {ahead.number} is better but has fewer trials: {text}")


def _print_importance(overview: Mapping[str, Any], metric: str) -> None:
    errors = overview["importance_std_error"]
    shares = [
        f"{name} {share:.0%} ± {errors[name]:.0%}" for name, share in overview["importance"].items()
    ]
    echo(f"Parameter importance for {metric}: {', '.join(shares)}")


def _print_configurations(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Print a line for each configuration of a sweep that repeats them."""
    columns = list(rows[0])
    for name in ("failed", "stopped"):
        if name in columns and not any(row[name] for row in rows):
            columns.remove(name)

    units = dict.fromkeys(("mean", "std", "low", "high", "lower_bound"), metric)
    cells = []
    for row in rows:
        cells.append([_format_cell(units.get(name, name), row[name]) for name in columns])
    titles = {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    print_table([titles.get(name, name.removeprefix(CONFIG)) for name in columns], cells)


def _print_trials(trials: pd.DataFrame, metrics: Sequence[str]) -> None:
    """Print a line for each trial: its values, the sweep's metrics and some costs."""
    prefixes = ("configuration", CONFIG, *_TRIAL_COLUMNS)
    columns = [
        name
        for name in trials.columns
        if (name in metrics or name.startswith(prefixes)) and trials[name].notna().any()
    ]
    rows = []
    for trial, *values in trials[columns].itertuples(name=None):
        rows.append((trial, *map(_format_cell, columns, values)))
    print_table(("trial", *(name.removeprefix(CONFIG) for name in columns)), rows)


def _format_cell(name: str, value: Any) -> str:
    """Format a cell: a parameter's value as in an experiment file, an error's lines as one."""
    is_known = value is not None and value == value
    if name == "error" and is_known:
        return " ".join(str(value).split())
    if name.startswith(CONFIG) and is_known:
        return format_parameter(value)
    return format_cell(name, value)
