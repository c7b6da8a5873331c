"""The overview of a run as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import echo, format_cell, print_json, print_table
from orchestrator.column_names import COSTS
from orchestrator.terminal.printable import escape_controls, escape_data
from orchestrator.units import format_count, number_epoch

if TYPE_CHECKING:
    from orchestrator.disk.metadata import Evaluated
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.runs.usage_hint import UsageHint

_LABELS = {"continued_from": "continued from", "init": "initial weights"}


def print_run(folder: RunFolder, as_json: bool) -> None:
    """Print the overview of a run, and how to use its checkpoints."""
    from orchestrator.runs.overview import describe_run

    described = describe_run(folder)
    if as_json:
        print_json(described)
        return

    run = escape_data(described)
    if run["error"]:
        # Its lines stay lines, because it may list several problems.
        run["error"] = escape_controls(described["error"]).replace("\n", "\n  ")
    reports = format_count(run["reports"], "report")
    attempts = format_count(run["attempts"], "attempt")
    echo(f"{run['path']}: {run['status']}, {reports}, {attempts}")
    _print_facts(run, ("driver", "error", "diverged", "stopped"))
    _print_best(run)
    if run["use"]:
        print_usage_hint(run["use"], has_diverged=bool(run["diverged"]))
    _print_facts(run, ("continued_from", "init"))
    _print_evaluated_checkpoint(run["evaluates"])
    _print_facts(run, ("predictions", "checkpoints", "evaluations"))
    _print_last_report(run["metrics"], run["earlier"])


def _print_facts(run: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Print a line for each fact that there is."""
    for key in keys:
        fact = run.get(key)
        if fact:
            text = ", ".join(fact) if isinstance(fact, list) else fact
            echo(f"{_LABELS.get(key, key)}: {text}")


def _print_best(run: Mapping[str, Any]) -> None:
    """Print the best report of a run, or why no report of a validated run is the best."""
    from hooks.metrics.direction import explain_unknown_direction
    from hooks.metrics.main_metric import list_val_metrics

    if run["best"]:
        echo(f"Best: {run['best']}")
        return

    validated = list_val_metrics(run["metrics"])
    if validated and not run["evaluates"] and not run["diverged"]:
        echo(explain_unknown_direction(validated))


def print_usage_hint(use: UsageHint, *, has_diverged: bool) -> None:
    """Print how to load a checkpoint, and how to train on from it.

    Args:
        use: The code and the command.
        has_diverged: True if more of the same training would diverge again.
    """
    echo(f"  use it:          {use.python}")
    if use.resumes:
        echo(f"  resume:          {use.command}")
    elif not has_diverged:
        echo(f"  train it longer: {use.command}")


def _print_evaluated_checkpoint(evaluated: Evaluated | None) -> None:
    if evaluated:
        label = "predicts with" if evaluated.verb == "predict" else "evaluates"
        echo(f"{label}: {evaluated}")


def _print_last_report(metrics: Mapping[str, Any], earlier: Mapping[str, str]) -> None:
    """Print the counters and the model's metrics; --json has the costs too.

    `earlier` says of a metric that the last report lacks which one has it.
    """
    rows = []
    for name, value in metrics.items():
        if name not in ("attempt", "time") and not name.endswith(COSTS):
            place = f" ({earlier[name]})" if name in earlier else ""
            rows.append((name, _format_metric(name, value) + place))
    if rows:
        echo("")
        print_table(("last report", ""), rows)


def _format_metric(name: str, value: Any) -> str:
    if name == "epoch":
        return format_cell(name, number_epoch(value))
    return "nan" if value != value else format_cell(name, value)
