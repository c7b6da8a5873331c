"""`hookyard show`, `hookyard watch` and `hookyard report`: a run or a sweep as text, live, or as
HTML."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED, SOME_FAILED
from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import check_output, echo, format_cell, print_json, print_table
from orchestrator.errors import StorageError, UsageError
from orchestrator.terminal.printable import escape_controls, escape_data

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.runs.best import UsageHint
    from orchestrator.sweeps.results.result import Sweep
    from orchestrator.terminal.frames import LiveFrame

_TRIAL_COLUMNS = (
    "status",
    "diverged",
    "leader",
    "reports",
    "step_s",
    "peak_",
    "process_",
    "stopped",
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

    folder = RunFolder.open(run)
    is_sweep = folder.read_metadata().sweep is not None
    if trial is not None and not is_sweep:
        raise UsageError(f"{run} is a single run; --trial is for sweeps")
    if trial is None and as_yaml:
        return echo(_make_printable_yaml(folder), nl=False)
    if is_sweep:
        from orchestrator.sweeps.results.result import Sweep

        sweep = Sweep(folder)
        if trial is None:
            return show_sweep(sweep, as_json)
        number = int(trial) if trial.isdecimal() else trial
        if as_yaml:
            from orchestrator.experiment.load import to_yaml

            return echo(to_yaml(sweep.experiment(number)), nl=False)
        folder = sweep.trial(number).folder
    return print_json(format_briefly(folder)) if as_json else show_brief(folder)


def _make_printable_yaml(folder: RunFolder) -> str:
    """Return the experiment file, written anew if somebody's edits contain what a terminal must not
    get."""
    from orchestrator.experiment.yaml.writer import dump_yaml

    text = folder.read_experiment_text()
    return text if escape_controls(text) == text else dump_yaml(folder.read_experiment())


def format_briefly(folder: RunFolder) -> dict[str, Any]:
    """Summarize a run as plain data, from its small files alone."""
    from orchestrator.disk.checkpoint_folder import list_checkpoints
    from orchestrator.disk.run_folder import EVALUATIONS
    from orchestrator.runs.best import find_best_and_divergence, make_usage_hint

    run = folder.read_metadata()
    reports = folder.read_current_reports()
    best, diverged = find_best_and_divergence(folder)
    checkpoints = list_checkpoints(folder)
    is_usable = diverged is None or (best is not None and best.iteration < diverged.iteration)
    label = "best" if best and best.checkpoint else "last"
    last = dict(reports[-1]) if reports else {}
    for report in reversed(
        reports[:-1]
    ):  # with the last metrics of each phase that the last report lacks
        phases = {name.rpartition("/")[0] for name in last}
        last |= {
            name: value for name, value in report.items() if name.rpartition("/")[0] not in phases
        }
    return {
        "name": folder.name,
        "path": str(folder),
        "status": (status := folder.find_status(run)),
        "driver": run.describe_driver(status),
        "started": run.started,
        "ended": run.ended,
        "attempts": len(folder.read_attempts()),
        "continued_from": run.continued_from,
        "init": run.init,
        "evaluates": run.evaluates,
        "evaluations": folder.storage.names(EVALUATIONS),
        "stopped": list(run.stopped),
        "error": run.error,
        "diverged": str(diverged or ""),
        "reports": len(reports),
        "metrics": last,
        "checkpoints": checkpoints,
        "best": best,
        "use": make_usage_hint(folder, label) if checkpoints and is_usable else None,
    }


def show_brief(folder: RunFolder) -> None:
    """Print the summary of a run, and how to use its checkpoints."""
    from hooks.metrics.direction import explain_unknown_direction, val_metrics

    summary = format_briefly(folder)
    run = escape_data(summary) | {
        "error": summary["error"] and summary["error"].replace("\n", "\n  ")
    }
    echo(
        f"{run['path']}: {run['status']}, {_count(run['reports'], 'report')}, {_count(run['attempts'], 'attempt')}"
    )
    for key in ("continued_from", "init", "evaluates", "driver", "error", "diverged"):
        if run[key]:
            echo(f"{_LABELS.get(key, key)}: {run[key]}")
    for label in ("stopped", "checkpoints", "evaluations"):
        if run[label]:
            echo(f"{label}: {', '.join(run[label])}")
    values = {
        name: value for name, value in run["metrics"].items() if name not in ("attempt", "time")
    }
    rows = [
        (name, format_cell(name, value) if value == value else "nan")
        for name, value in values.items()
    ]
    if rows:
        echo("")
        print_table(("last report", ""), rows)
        echo("")
    if run["best"]:
        echo(f"Best: {run['best']}")
    elif not run["evaluates"] and not run["diverged"] and (metrics := val_metrics(run["metrics"])):
        echo(explain_unknown_direction(metrics))
    _print_usage_hint(run["use"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_usage_hint(use: UsageHint | None) -> None:
    if use:
        label = (
            "resume:         " if use.command.startswith("hookyard resume") else "train it longer:"
        )
        echo(f"  use it:          {use.python}")
        echo(f"  {label} {use.command}")


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Print the trials of a sweep, the best first, and their summary."""
    from orchestrator.sweeps.results.analysis import (
        CONFIG,
        explain_no_best,
        list_configurations,
        sort_best_first,
    )
    from orchestrator.tables.configurations import find_better_with_fewer_trials

    metric, mode = sweep.objective
    trials = sort_best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate)
    summary = _summarize(sweep, trials)
    if as_json:
        return print_json({**summary, "trials": trials.reset_index().to_dict("records")})
    summary = escape_data(summary)
    if summary["configurations"]:
        _print_configurations(summary["configurations"], metric)
    openings = ("configuration", CONFIG, *_TRIAL_COLUMNS)
    shown = [
        name
        for name in trials.columns
        if name in dict(sweep.objectives) or name.startswith(openings)
    ]
    columns = [name for name in shown if trials[name].notna().any()]
    print_table(
        ("trial", *(name.removeprefix(CONFIG) for name in columns)),
        [
            (trial, *map(format_cell, columns, values))
            for trial, *values in trials[columns].itertuples(name=None)
        ],
    )
    counts = ", ".join(f"{count} {status}" for status, count in summary["counts"].items())
    echo(
        f"\n{sweep.folder}: {summary['status']}, {_count(len(trials), 'trial')}{f': {counts}' if counts else ''}"
    )
    if summary["driver"]:
        echo(f"driver: {summary['driver']}")
    if shared := summary["shared_training"]:
        echo(
            f"{shared['followers']} of {shared['trials']} trials shared another trial's training, which saved"
            f" {format_cell('saved_s', shared['saved_s'])}"
        )
    if summary["importance"]:
        spreads = summary["importance_spread"]
        shares = ", ".join(
            f"{name} {share:.0%} ± {spreads[name]:.0%}"
            for name, share in summary["importance"].items()
        )
        echo(f"Parameter importance for {metric}: {shares}")
    if summary["pareto"]:
        echo(f"Pareto front of {', '.join(dict(sweep.objectives))}: {', '.join(summary['pareto'])}")
    if not summary["best"]:
        return echo(f"no best trial: {explain_no_best(trials, metric)}")
    if summary["configurations"]:
        best, *_ = ordered = list_configurations(trials, metric, mode, sweep.aggregate)
        echo(f"Best configuration: {best.number} with {metric} {best.describe(metric)}")
        if ahead := find_better_with_fewer_trials(ordered, mode):
            echo(
                f"Configuration {ahead.number} is better but has fewer trials: {ahead.describe(metric)}"
            )
    reached = summary["reached"] or f"{metric} {format_cell(metric, summary['value'])}"
    echo(f"Best: {summary['best'].rpartition('/')[2]}, {reached}")
    return _print_usage_hint(summary["use"])


def _print_configurations(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    from orchestrator.sweeps.results.analysis import CONFIG

    columns = [
        name
        for name in rows[0]
        if name not in ("failed", "stopped") or any(row[name] for row in rows)
    ]
    headings = {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    units = dict.fromkeys(("mean", "std", "low", "high", "lower_bound"), metric)
    print_table(
        [headings.get(name, name.removeprefix(CONFIG)) for name in columns],
        [[format_cell(units.get(name, name), row[name]) for name in columns] for row in rows],
    )
    echo("")


def _compute_saved_seconds(trials: pd.DataFrame) -> float:
    """Return the training time that shared training saved.

    A report takes all trials of a group as long as the leader, and the group trains until its
    longest trial ends.
    """
    reports = trials.groupby("leader")["reports"]
    reported = trials["reports"].where(trials["reports"] > 0)
    return float(((reports.sum() - reports.max()) * trials["train_s"] / reported).sum())


def _summarize(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """Summarize the trials of a sweep, which come the best first."""
    from orchestrator.runs.best import make_usage_hint
    from orchestrator.sweeps.results import analysis

    metric, mode = sweep.objective
    values: Any = analysis.select_candidates(trials, metric)[metric] if metric in trials else ()
    best = values.index[0] if len(values) else None
    reached = sweep.trial(best).best if best else None
    units = analysis.aggregate_repeats(trials, metric, mode, sweep.aggregate)
    importance = (
        analysis.make_importance_table(units, metric) if len(units) >= analysis.MIN_TRIALS else None
    )
    shared_training = None
    if "leader" in trials:
        followers = trials[trials["leader"].notna() & (trials["leader"] != trials.index)]
        saved_s = _compute_saved_seconds(trials) if "train_s" in trials else 0.0
        shared_training = {"followers": len(followers), "trials": len(trials), "saved_s": saved_s}
    has_checkpoint = best is not None and reached is not None and reached.checkpoint is not None
    has_repeats = sweep.repeats > 1 and best is not None
    has_front = (
        len(trials) and len(sweep.objectives) > 1 and {*dict(sweep.objectives)} <= {*trials.columns}
    )
    return {
        "path": str(sweep.folder),
        "status": (status := sweep.status),
        "driver": sweep.folder.read_metadata().describe_driver(status),
        "counts": trials["status"].value_counts().to_dict() if len(trials) else {},
        "shared_training": shared_training,
        "best": str(sweep.folder.storage / "trials" / best) if best else None,
        "value": values[best] if best else None,
        "configurations": (
            analysis.make_configurations_table(trials, metric, mode, sweep.aggregate)
            .reset_index()
            .to_dict("records")
            if has_repeats
            else []
        ),
        "reached": reached,
        "use": make_usage_hint(sweep.folder, "best", sweep.trial(str(best)).folder)
        if has_checkpoint
        else None,
        "importance": {} if importance is None else importance["importance"].to_dict(),
        "importance_spread": {} if importance is None else importance["spread"].to_dict(),
        "pareto": [*analysis.find_pareto_front(trials, dict(sweep.objectives)).index]
        if has_front
        else [],
    }


_WIDTH = 160
"""Columns of a frame that goes to a pipe."""
_CODES = {"failed": FAILED, "lost": FAILED, "interrupted": INTERRUPTED}


def watch(
    run: RunOrSweep,
    once: Annotated[
        bool, typer.Option("--once", help="Print the present state, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run or sweep until it ends, from its files alone.

    Exits with the exit code of the run.

    Example: hookyard watch runs/spirals
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.terminal.frames import LiveFrame, PrintableConsole

    folder = RunFolder.open(run)
    frame = LiveFrame(folder)
    view = frame.read_view()
    if as_json:
        print_json(view)
    elif once or not sys.stdout.isatty():
        PrintableConsole(width=None if sys.stdout.isatty() else _WIDTH).print(
            frame.draw(view, None)
        )
    else:
        try:
            view = _watch(PrintableConsole(), folder, frame, view)
        except KeyboardInterrupt:
            echo(f"Stopped watching. {folder} is still running.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    some_failed = getattr(view, "failed", 0) and view.status != "running"
    raise typer.Exit(_CODES.get(view.status, SOME_FAILED if some_failed else 0))


def _watch(console: Console, folder: RunFolder, frame: LiveFrame, view: Any) -> Any:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(frame.draw(view, console.height), refresh=True)
            if view.status != "running":
                return view
            try:
                time.sleep(frame.every_s)
                view = frame.read_view()
            except OSError:
                # A file may be rewritten at this moment; if the run was removed, this raises.
                type(folder).open(str(folder))


PAGE = "report.html"


def report(
    run: RunOrSweep,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File or URL to write; report.html in the run by default."
        ),
    ] = None,
) -> None:
    """Write an HTML report of a run or sweep, one file that needs no network.

    Example: hookyard report runs/spirals --output spirals.html
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.report import make_report
    from orchestrator.storage import Storage
    from orchestrator.storage.remote import split_options

    folder = RunFolder.open(run)
    if output:
        check_output(split_options(output)[0])
    file = Storage(output) if output else folder.storage / PAGE
    page = make_report(folder)
    try:
        file.parent.write(file.name, page)
    except (OSError, StorageError) as error:
        raise UsageError(f"cannot write {file}: {error}") from None
    echo(file)
