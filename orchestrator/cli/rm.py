"""`hookyard rm`: removal of runs and sweeps."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.options import complete_runs
from orchestrator.cli.output import echo
from orchestrator.errors import UsageError


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Runs and sweeps.", autocompletion=complete_runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove runs and sweeps with all their files, after listing their contents.

    Example: hookyard rm runs/spirals
    """
    from orchestrator.disk.removal import plan_removal

    removals = [plan_removal(run) for run in dict.fromkeys(runs)]
    for removal in removals:
        echo(removal.describe(), err=True)
    if not yes:
        _ask_for_confirmation()
    for removal in removals:
        removal.execute()


def _ask_for_confirmation() -> None:
    """Ask the user; exit if the answer is no, and raise UsageError if nobody can answer."""
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was removed: stdin is not a terminal, so Hookyard cannot ask for confirmation; use --yes"
        )
    typer.confirm("Remove this permanently?", abort=True, err=True)
