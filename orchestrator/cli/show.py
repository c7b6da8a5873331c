"""`hookyard show`: a run or a sweep as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo
from orchestrator.cli.run_overview import print_run
from orchestrator.cli.stored_run import open_run_or_sweep
from orchestrator.cli.sweep_overview import print_sweep
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import escape_controls

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.sweeps.results.result import Sweep


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
    from orchestrator.runs.result import Run

    if as_yaml and as_json:
        raise UsageError("--yaml and --json cannot be combined; leave out one of them")

    opened = open_run_or_sweep(run)
    if trial is not None:
        if isinstance(opened, Run):
            raise UsageError(f"{opened.folder} is a single run; --trial is for sweeps")
        _show_trial(opened, trial, as_yaml, as_json)
    elif as_yaml:
        echo(_make_printable_yaml(opened.folder), nl=False)
    elif isinstance(opened, Run):
        print_run(opened.folder, as_json)
    else:
        print_sweep(opened, as_json)


def _show_trial(sweep: Sweep, trial: str, as_yaml: bool, as_json: bool) -> None:
    from orchestrator.experiment.load import to_yaml

    number = int(trial) if trial.isdecimal() else trial
    if as_yaml:
        echo(to_yaml(sweep.experiment(number)), nl=False)
    else:
        print_run(sweep.trial(number).folder, as_json)


def _make_printable_yaml(folder: RunFolder) -> str:
    """Return the experiment file, written anew if somebody's edits contain what a terminal must not
    get."""
    from orchestrator.experiment.yaml.writer import dump_yaml

    text = folder.read_experiment_text()
    if escape_controls(text) == text:
        return text
    return dump_yaml(folder.read_experiment())
