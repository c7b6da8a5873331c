"""`hookyard show`: a run or a sweep as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, format_cell, print_json, print_table
from orchestrator.column_names import CONFIG, COSTS
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import escape_controls, escape_data
from orchestrator.units import format_count, format_parameter, number_epoch

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.runs.usage_hint import UsageHint
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
_LABELS = {"continued_from": "continued from", "init": "initial weights"}


def show(
    run: RunOrSweep,
    trial: Annotated[
        str | None, typer.Option(metavar="TRIAL", help="A trial of the sweep, by number or name.")
    ] = None,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the experiment file, ready to run again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's last report and best checkpoint, or a sweep's trials, parameter importance and
    best trial.

    Example: hookyard show runs/spirals
    """
    from orchestrator.disk.run_folder import RunFolder

    if as_yaml and as_json:
        raise UsageError("--yaml and --json cannot be combined; leave out one of them")
    folder = RunFolder.open(run)
    is_sweep = folder.read_metadata().sweep is not None
    if trial is not None and not is_sweep:
        raise UsageError(f"{run} is a single run; --trial is for sweeps")
    if trial is None and as_yaml:
        return echo(_make_printable_yaml(folder), nl=False)
    if not is_sweep:
        return show_run(folder, as_json)

    from orchestrator.sweeps.results.result import Sweep

    sweep = Sweep(folder)
    if trial is None:
        return show_sweep(sweep, as_json)
    number = int(trial) if trial.isdecimal() else trial
    if as_yaml:
        return _show_yaml_of_trial(sweep, number)
    return show_run(sweep.trial(number).folder, as_json)


def _show_yaml_of_trial(sweep: Sweep, number: int | str) -> None:
    from orchestrator.experiment.load import to_yaml

    echo(to_yaml(sweep.experiment(number)), nl=False)


def _make_printable_yaml(folder: RunFolder) -> str:
    """Return the experiment file, written anew if somebody's edits contain what a terminal must not
    get."""
    from orchestrator.experiment.yaml.writer import dump_yaml

    text = folder.read_experiment_text()
    return text if escape_controls(text) == text else dump_yaml(folder.read_experiment())


def show_run(folder: RunFolder, as_json: bool) -> None:
    """Print the overview of a run, and how to use its checkpoints."""
    from orchestrator.runs.overview import describe_run

    described = describe_run(folder)
    if as_json:
        return print_json(described)
    run = escape_data(described)
    if run["error"]:
        run["error"] = run["error"].replace("\n", "\n  ")
    reports = format_count(run["reports"], "report")
    attempts = format_count(run["attempts"], "attempt")
    echo(f"{run['path']}: {run['status']}, {reports}, {attempts}")
    _print_facts(run, ("driver", "error", "diverged", "stopped"))
    if run["best"]:
        echo(f"Best: {run['best']}")
    elif not run["evaluates"] and not run["diverged"]:
        _explain_no_best(run["metrics"])
    _print_usage_hint(run["use"], bool(run["diverged"]))
    _print_facts(run, ("continued_from", "init"))
    if run["evaluates"]:
        verb = described["evaluates"].verb
        echo(f"{'predicts with' if verb == 'predict' else 'evaluates'}: {run['evaluates']}")
    _print_facts(run, ("predictions", "checkpoints", "evaluations"))
    return _print_last_report(run["metrics"], run["earlier"])


def _print_facts(run: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Print a line for each fact that there is."""
    for key in keys:
        fact = run.get(key)
        if fact:
            text = ", ".join(fact) if isinstance(fact, list) else fact
            echo(f"{_LABELS.get(key, key)}: {text}")


def _print_last_report(metrics: Mapping[str, Any], earlier: Mapping[str, str]) -> None:
    """Print the counters and the model's metrics; --json has the costs too.

    `earlier` says of a metric that the last report lacks which one has it.
    """
    rows = []
    for name, value in metrics.items():
        if name not in ("attempt", "time") and not name.endswith(COSTS):
            number = number_epoch(value) if name == "epoch" else value
            cell = "nan" if value != value else format_cell(name, number)
            place = f" ({earlier[name]})" if name in earlier else ""
            rows.append((name, cell + place))
    if rows:
        echo("")
        print_table(("last report", ""), rows)


def _explain_no_best(metrics: Mapping[str, Any]) -> None:
    from hooks.metrics.direction import explain_unknown_direction
    from hooks.metrics.main_metric import list_val_metrics

    validated = list_val_metrics(metrics)
    if validated:
        echo(explain_unknown_direction(validated))


def _print_usage_hint(use: UsageHint | None, has_diverged: bool = False) -> None:
    if use is None:
        return
    echo(f"  use it:          {use.python}")
    if use.command.startswith("hookyard resume"):
        echo(f"  resume:          {use.command}")
    elif not has_diverged:  # more of the same training would diverge again
        echo(f"  train it longer: {use.command}")


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Print the trials of a sweep, the best first, and their overview."""
    from orchestrator.sweeps.results.overview import describe_sweep
    from orchestrator.sweeps.results.ranking import explain_no_best, sort_best_first

    metric, _ = sweep.objective
    trials = sort_best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate)
    described = describe_sweep(sweep, trials)
    if as_json:
        return print_json({**described, "trials": trials.reset_index().to_dict("records")})

    overview = escape_data(described)
    _print_status(str(sweep.folder), overview, len(trials))
    if overview["best"]:
        _print_best_trial(sweep, trials, overview)
    else:
        echo(f"no best trial: {explain_no_best(trials, metric)}")
    if overview["importance"]:
        _print_importance(overview, metric)
    if overview["pareto"]:
        names = ", ".join(name for name, _ in sweep.objectives)
        echo(f"Pareto front of {names}: {', '.join(overview['pareto'])}")
    echo("")
    if overview["configurations"]:
        _print_configurations(overview["configurations"], metric)
    return _print_trials(trials, [name for name, _ in sweep.objectives])


def _print_best_trial(sweep: Sweep, trials: pd.DataFrame, overview: Mapping[str, Any]) -> None:
    metric, _ = sweep.objective
    if overview["configurations"]:
        _print_best_configuration(sweep, trials)
    reached = overview["reached"] or f"{metric} {format_cell(metric, overview['value'])}"
    echo(f"Best: {overview['best'].rpartition('/')[2]}, {reached}")
    _print_usage_hint(overview["use"])


def _print_trials(trials: pd.DataFrame, metrics: Sequence[str]) -> None:
    openings = ("configuration", CONFIG, *_TRIAL_COLUMNS)
    columns = [
        name
        for name in trials.columns
        if (name in metrics or name.startswith(openings)) and trials[name].notna().any()
    ]
    rows = [
        (trial, *map(_format_trial_cell, columns, values))
        for trial, *values in trials[columns].itertuples(name=None)
    ]
    print_table(("trial", *(name.removeprefix(CONFIG) for name in columns)), rows)


def _format_trial_cell(name: str, value: Any) -> str:
    """Format a cell: a parameter's value as in an experiment file, an error's lines as one."""
    is_known = value is not None and value == value
    if name == "error" and is_known:
        return " ".join(str(value).split())
    if name.startswith(CONFIG) and is_known:
        return format_parameter(value)
    return format_cell(name, value)


def _print_status(folder: str, overview: Mapping[str, Any], trials: int) -> None:
    status = overview["status"]
    if status == "finished" and overview["counts"].get("failed") == trials:
        status = "ended without success"
    line = f"{folder}: {status}, {format_count(trials, 'trial')}"
    counts = ", ".join(f"{count} {status}" for status, count in overview["counts"].items())
    echo(f"{line}: {counts}" if counts else line)
    if overview["driver"]:
        echo(f"driver: {overview['driver']}")
    shared = overview["shared_training"]
    if shared:
        echo(
            f"{shared['followers']} of {shared['trials']} trials shared another trial's training,"
            f" which saved {format_cell('saved_s', shared['saved_s'])}"
        )


def _print_importance(overview: Mapping[str, Any], metric: str) -> None:
    errors = overview["importance_std_error"]
    shares = [
        f"{name} {share:.0%} ± {errors[name]:.0%}" for name, share in overview["importance"].items()
    ]
    echo(f"Parameter importance for {metric}: {', '.join(shares)}")


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


def _print_configurations(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    columns = list(rows[0])
    for name in ("failed", "stopped"):
        if name in columns and not any(row[name] for row in rows):
            columns.remove(name)
    headings = {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    units = dict.fromkeys(("mean", "std", "low", "high", "lower_bound"), metric)
    cells = []
    for row in rows:
        cells.append([_format_trial_cell(units.get(name, name), row[name]) for name in columns])
    print_table([headings.get(name, name.removeprefix(CONFIG)) for name in columns], cells)
    echo("")
