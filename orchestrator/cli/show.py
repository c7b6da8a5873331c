"""`hookyard show RUN`, `hookyard show SWEEP [--trial N]`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import cell, echo, print_json, print_table
from orchestrator.terminal.printable import printable_data

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.records.run_folder import RunFolder
    from orchestrator.sweeps.results.result import Sweep


def show(
    run: RunOrSweep,
    trial: Annotated[str | None, typer.Option("--trial", help="A trial of the sweep, by number or name.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print the experiment, ready to be run again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows a run: how it went, its last report, its checkpoints; or a sweep: its trials, the best and what
    mattered."""
    from orchestrator.records.run_folder import RunFolder

    folder = RunFolder.open(run)
    if trial is None and as_yaml:
        return echo(folder.experiment_text(), nl=False)
    if trial is not None or folder.metadata().sweep:
        from orchestrator.sweeps.results.result import open_sweep

        sweep = open_sweep(run)
        if trial is None:
            return show_sweep(sweep, as_json)
        number = int(trial) if trial.isdecimal() else trial
        if as_yaml:
            from orchestrator.config.load import to_yaml

            return echo(to_yaml(sweep.experiment(number)), nl=False)
        folder = sweep.trial(number).folder
    return print_json(brief(folder)) if as_json else show_brief(folder)


def brief(folder: RunFolder) -> dict[str, Any]:
    """A run in a few words, from its small files alone."""
    from orchestrator.records.reports import counted_reports
    from orchestrator.records.run_driver import status_of
    from orchestrator.records.run_folder import EVALUATIONS
    from orchestrator.runs.best import Use, best_and_divergence

    run = folder.metadata()
    reports = counted_reports(folder.reports(), folder.attempts())
    (best, diverged), checkpoints = best_and_divergence(folder), folder.checkpoint_names()
    is_of_use = diverged is None or (best is not None and best.step < diverged.step)
    label = "best" if best and best.checkpoint else "last"
    return {
        "name": folder.name,
        "path": str(folder),
        "status": (status := status_of(folder, run)),
        "driver": run.driver_in_words(status),
        "started": run.started,
        "ended": run.ended,
        "attempts": len(folder.attempts()),
        "continued_from": run.continued_from,
        "init": run.init,
        "evaluates": run.evaluates,
        "evaluations": folder.storage.names(EVALUATIONS),
        "stopped": list(run.stopped),
        "error": run.error,
        "diverged": str(diverged or ""),
        "reports": len(reports),
        "metrics": _last_of_each_phase(reports),
        "checkpoints": checkpoints,
        "best": asdict(best) if best else None,
        "use": asdict(Use.of(folder, label)) if checkpoints and is_of_use else None,
    }


def _last_of_each_phase(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last report, with the last metrics of each phase that it does not have."""
    last = dict(reports[-1]) if reports else {}
    for report in reversed(reports[:-1]):
        phases = {name.rpartition("/")[0] for name in last}
        last |= {name: value for name, value in report.items() if name.rpartition("/")[0] not in phases}
    return last


def show_brief(folder: RunFolder) -> None:
    """Prints a run in a few words, and how to use what it made."""
    from hooks.metrics.direction import not_known
    from orchestrator.config.text.source import InitialWeights, ParentCheckpoint
    from orchestrator.records.metadata import Evaluated
    from orchestrator.runs.best import Best

    told = brief(folder)
    known = printable_data(told) | {"error": told["error"] and told["error"].replace("\n", "\n  ")}
    echo(f"{known['path']}: {known['status']}, {known['reports']} reports, {known['attempts']} attempt(s)")
    if known["continued_from"]:
        echo(f"went on from {ParentCheckpoint(**known['continued_from'])}")
    if known["init"]:
        echo(f"began with {InitialWeights(**known['init'])}")
    if known["evaluates"]:
        echo(f"measures {Evaluated(**known['evaluates'])}")
    for label in ("driver", "error", "diverged", "stopped"):
        if known[label]:
            echo(f"{label}: {', '.join(known[label]) if label == 'stopped' else known[label]}")
    if known["checkpoints"]:
        echo(f"checkpoints: {', '.join(known['checkpoints'])}")
    if known["evaluations"]:
        echo(f"evaluations: {', '.join(known['evaluations'])}")
    rows = [(name, cell(name, value)) for name, value in known["metrics"].items() if name not in ("attempt", "time")]
    if rows:
        print_table(("last report", ""), rows)
    if known["best"]:
        echo(f"best: {Best(**known['best'])}")
    elif not known["evaluates"] and (metrics := sorted(name for name in known["metrics"] if name.startswith("val/"))):
        echo(not_known(metrics))
    if known["use"]:
        show_use(**known["use"])


def show_use(python: str, command: str) -> None:
    """Prints what to type to use a checkpoint."""
    echo(f"  use it:          {python}")
    echo(f"  train it longer: {command}")


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Prints the trials of a sweep, the best first, and what they tell."""
    from orchestrator.runs.best import Best
    from orchestrator.sweeps.results.analysis import CONFIG, best_first

    metric, _ = sweep.objective
    trials = best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate)
    summary = _summary(sweep, trials)
    if as_json:
        return print_json({**summary, "trials": trials.reset_index().to_dict("records")})
    summary = printable_data(summary)
    if summary["configurations"]:
        _print_configurations(summary["configurations"], metric)
    wanted = (
        "configuration",
        CONFIG,
        *dict(sweep.objectives),
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
    columns = [name for name in trials.columns if name.startswith(wanted) and trials[name].notna().any()]
    print_table(
        ("trial", *(name.removeprefix(CONFIG) for name in columns)),
        [(trial, *map(cell, columns, values)) for trial, *values in trials[columns].itertuples(name=None)],
    )
    counts = ", ".join(f"{count} {status}" for status, count in summary["counts"].items())
    echo(f"{sweep.path}: {summary['status']}, {counts or 'no trial yet'}")
    if summary["driver"]:
        echo(f"driver: {summary['driver']}")
    if summary["shared_training"]:
        echo(
            "rode along: {trials} of {all}, on trainings of others; by themselves these would have trained for"
            " {saved_s:.1f} s more".format(**summary["shared_training"])
        )
    if summary["importance"]:
        spreads = summary["importance_spread"]
        shares = ", ".join(f"{name} {share:.0%} ± {spreads[name]:.0%}" for name, share in summary["importance"].items())
        echo(f"what mattered for {metric}: {shares}")
    if summary["pareto"]:
        echo(f"no trial beats in all of {', '.join(dict(sweep.objectives))}: {', '.join(summary['pareto'])}")
    if not summary["best"]:
        return echo(f"no trial has reported {metric} yet")
    for line in summary["of_configurations"]:
        echo(line)
    echo(f"best: {summary['best']} with {metric} {cell(metric, summary['value'])}")
    if summary["use"]:
        echo(f"  its best:        {Best(**summary['reached'])}")
        show_use(**summary["use"])
    return None


def _print_configurations(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Prints what the repeats of each configuration reached together."""
    from orchestrator.sweeps.results.analysis import CONFIG

    told = [name for name in rows[0] if name not in ("failed", "stopped") or any(row[name] for row in rows)]
    headings = {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    quantity = dict.fromkeys(("mean", "std", "low", "high", "lower_bound"), metric)
    print_table(
        [headings.get(name, name.removeprefix(CONFIG)) for name in told],
        [[cell(quantity.get(name, name), row[name]) for name in told] for row in rows],
    )
    echo("")


def _of_configurations(trials: pd.DataFrame, metric: str, mode: str, aggregate: str) -> list[str]:
    """Which configuration is the best, and which of fewer trials is ahead of it."""
    from orchestrator.stats.aggregate.configurations import ahead_with_fewer
    from orchestrator.sweeps.results.analysis import configurations_of

    ordered = configurations_of(trials, metric, mode, aggregate)
    ahead = ahead_with_fewer(ordered, mode)
    best = (
        f"best configuration: {ordered[0].number} with {metric} {ordered[0].in_words(metric)}; the best of them is"
        " called best"
    )
    return [
        best,
        *([f"of fewer trials, configuration {ahead.number} is better: {ahead.in_words(metric)}"] if ahead else []),
    ]


def _shared_training(trials: pd.DataFrame) -> dict[str, Any] | None:
    """How many trials rode on the training of others, of how many in all, and the seconds of training that this saved;
    None where none did."""
    if "leader" not in trials:
        return None
    followers = trials[trials["leader"].notna() & (trials["leader"] != trials.index)]
    trained: Any = trials.get("train_s", {})
    saved = sum(trained.get(leader, 0) for leader in followers["leader"])
    return {"trials": len(followers), "all": len(trials), "saved_s": float(saved)}


def _use_of_best(sweep: Sweep, trial: str) -> dict[str, Any]:
    from orchestrator.runs.best import Use

    return asdict(Use.of(sweep.folder, "best", sweep.trial(trial).folder))


def _summary(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """What the trials of a sweep, the best first, tell together; importance where there are enough of them, by the
    method that needs no other package, and the Pareto front where it has several metrics."""
    from orchestrator.sweeps.results.analysis import (
        ENOUGH,
        configurations_table,
        importance_table,
        judged,
        non_dominated,
    )

    metric, mode = sweep.objective
    values: Any = trials[metric].dropna() if len(trials) else ()
    best = values.index[0] if len(values) else None
    reached = sweep.trial(best).best if best else None
    mattered = (
        importance_table(trials, metric, mode, "variance", sweep.aggregate)
        if len(judged(trials, metric, mode, sweep.aggregate)) >= ENOUGH
        else None
    )
    repeated = sweep.repeats > 1 and best is not None
    known = len(trials) and len(sweep.objectives) > 1 and {*dict(sweep.objectives)} <= {*trials.columns}
    return {
        "path": sweep.path,
        "status": (status := sweep.status),
        "driver": sweep.folder.metadata().driver_in_words(status),
        "counts": trials["status"].value_counts().to_dict() if len(trials) else {},
        "shared_training": _shared_training(trials),
        "best": str(sweep.folder.storage / "trials" / best) if best else None,
        "value": values[best] if best else None,
        "configurations": (
            configurations_table(trials, metric, mode, sweep.aggregate).reset_index().to_dict("records")
            if repeated
            else []
        ),
        "of_configurations": _of_configurations(trials, metric, mode, sweep.aggregate) if repeated else [],
        "reached": asdict(reached) if reached else None,
        "use": _use_of_best(sweep, str(best)) if reached and reached.checkpoint else None,
        "importance": {} if mattered is None else mattered["importance"].to_dict(),
        "importance_spread": {} if mattered is None else mattered["spread"].to_dict(),
        "pareto": [*non_dominated(trials, dict(sweep.objectives)).index] if known else [],
    }
