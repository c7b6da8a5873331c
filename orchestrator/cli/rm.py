"""`hookyard rm RUN...`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.completion import run_folders
from orchestrator.cli.output import echo
from orchestrator.errors import UsageError


def rm(
    runs: Annotated[list[str], typer.Argument(help="The folders of runs and sweeps.", autocompletion=run_folders)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Removes runs and sweeps with all they hold, after it has said what that is and asked."""
    from orchestrator.records.removal import Removal

    removals = [Removal.of(run) for run in runs]
    for removal in removals:
        echo(str(removal), err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nothing was removed: there is no terminal to ask on; --yes removes without asking")
        typer.confirm("Remove this for good?", abort=True, err=True)
    for removal in removals:
        removal.carry_out()
