"""The end of a run or a sweep: its results, the next commands, and the exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import INTERRUPTED, SOME_FAILED
from orchestrator.cli.output import echo
from orchestrator.cli.run_overview import print_run
from orchestrator.cli.sweep_overview import print_sweep

if TYPE_CHECKING:
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep


def finish_run(done: Run, as_json: bool) -> None:
    """Print the results of a run and what to do next; exit with 130 if it was interrupted."""
    print_run(done.folder, as_json)
    if not as_json:
        path = shlex.quote(str(done.folder))
        _print_next(f"hookyard stats {path} --by rank", f"hookyard report {path}")
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)


def finish_sweep(done: Sweep, as_json: bool) -> None:
    """Print the results of a sweep; exit with 130 if it was interrupted, with 3 if trials
    failed."""
    print_sweep(done, as_json)
    if not as_json:
        _print_next(f"hookyard report {shlex.quote(str(done.folder))}")
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if done.count_failed_trials():
        raise typer.Exit(SOME_FAILED)


def _print_next(*commands: str) -> None:
    echo("\n".join(["Next:", *(f"  {command}" for command in commands)]), err=True)
