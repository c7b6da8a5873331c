"""`hookyard doctor`: what slows a run down, damaged files, or nodes that are unfit for training."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Address, AsJson, StorageFlag, complete_runs
from orchestrator.errors import UsageError


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run or a sweep. Without it, doctor checks this machine or a cluster.",
            autocompletion=complete_runs,
        ),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Check every file of RUN, and its checksums.")
    ] = False,
    address: Address = None,
    storage: StorageFlag = "runs",
    as_json: AsJson = False,
) -> None:
    """Find what slows a run down: slow ranks, data loading, hooks, memory.

    With --files, find damaged files. Without RUN, find nodes that are unfit for training.

    Example: hookyard doctor runs/spirals
    """
    from orchestrator.cli.doctor_files import check_run_files
    from orchestrator.cli.doctor_findings import print_findings
    from orchestrator.cli.doctor_nodes import check_nodes

    if files and run is None:
        raise UsageError("--files checks one run or sweep: hookyard doctor RUN --files")
    if run is None:
        check_nodes(address, storage, as_json)
    elif files:
        check_run_files(run, as_json)
    else:
        print_findings(run, as_json)
