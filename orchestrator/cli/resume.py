"""`hookyard resume RUN`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import run as of_run
from orchestrator.cli import sweep as of_sweep
from orchestrator.cli.options import Address, AsJson, RunOrSweep, SkipPreflight
from orchestrator.cli.output import talk
from orchestrator.errors import UsageError


def resume(
    run: RunOrSweep,
    address: Address = None,
    failed: Annotated[bool, typer.Option("--failed", help="Of a sweep: try the trials again that failed.")] = False,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Of a sweep: go on with its file as it is now, where that has changed."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Of a run: go on with another number of ranks.")
    ] = None,
    force_lease: Annotated[
        bool,
        typer.Option(
            "--force-lease", help="Its driver was on another machine, and is gone; from here that cannot be seen."
        ),
    ] = False,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start", help="Of a run: throw its checkpoints away and begin anew, where none of them is whole."
        ),
    ] = False,
    skip_preflight: SkipPreflight = False,
    as_json: AsJson = False,
) -> None:
    """Goes on with a run or a sweep that was interrupted, failed or lost its driver, from the last checkpoints."""
    from orchestrator.records.run_driver import being_taken_up, lease_of
    from orchestrator.records.run_folder import RunFolder, nothing_started

    with nothing_started():
        folder = RunFolder.open(run)
        metadata = folder.metadata()
    if metadata.sweep is None and (failed or accept_changes):
        raise UsageError(f"{run} is a single run; --failed and --accept-changes are for sweeps")
    if metadata.sweep and workers is not None:
        raise UsageError(f"{run} is a sweep; --workers is for single runs")
    if metadata.sweep and from_start:
        raise UsageError(f"{run} is a sweep; --from-start is for single runs")
    with lease_of(folder, force_lease=force_lease) as lease, being_taken_up(folder):
        from orchestrator.cluster.preflight import preflight
        from orchestrator.runs import driver as runs

        experiment = runs.experiment_to_resume(folder, workers)
        with talk(), preflight(address, run, experiment, skip=metadata.local or skip_preflight):
            if metadata.sweep is None:
                done = runs.go_on(folder, lease, workers=workers, address=address, from_start=from_start)
            else:
                from orchestrator.sweeps import driver as sweeps

                swept = sweeps.go_on(folder, lease, failed=failed, accept_changes=accept_changes, address=address)
    return of_run.finish(done, as_json) if metadata.sweep is None else of_sweep.finish(swept, as_json)
