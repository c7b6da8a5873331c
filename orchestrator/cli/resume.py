"""`hookyard resume`: a run or a sweep that was interrupted, failed or lost its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.finish import finish_run, finish_sweep
from orchestrator.cli.output import stdout_to_stderr
from orchestrator.errors import UsageError, errors_before_start

if TYPE_CHECKING:
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep


def resume(
    run: options.RunOrSweep,
    address: options.Address = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Sweeps only: retry the failed trials too.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs only: resume on N ranks.")
    ] = None,
    force_lease: Annotated[
        bool,
        typer.Option(
            "--force-lease",
            help="Take the lease of a driver that died on another machine, without waiting for it to expire.",
        ),
    ] = False,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start",
            help="Runs only: delete damaged checkpoints and restart, if none is usable.",
        ),
    ] = False,
    skip_preflight: options.SkipPreflight = False,
    as_json: options.AsJson = False,
) -> None:
    """Resume a run or sweep that was interrupted, failed or lost its driver.

    It takes the edits of the experiment.yaml in its folder, such as another loader.num_workers.

    Example: hookyard resume runs/spirals
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.disk.run_status import make_lease

    with errors_before_start():
        folder = RunFolder.open(run)
        metadata = folder.read_metadata()
    if metadata.sweep is None and failed:
        raise UsageError(f"{folder} is a single run; --failed is for sweeps")
    if metadata.sweep and (workers is not None or from_start):
        raise UsageError(f"{folder} is a sweep; --workers and --from-start are for single runs")

    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs import resume as runs
    from orchestrator.runs.result import Run

    done: Run | Sweep
    with make_lease(folder, force=force_lease) as lease:
        experiment = runs.load_experiment_to_resume(folder, workers)
        skip = metadata.local or skip_preflight
        with stdout_to_stderr(), preflight(address, run, experiment, skip=skip):
            if metadata.sweep is None:
                done = runs.resume_with_lease(
                    folder, lease, experiment, address=address, from_start=from_start
                )
            else:
                from orchestrator.sweeps import resume as sweeps

                done = sweeps.resume_with_lease(
                    folder, lease, experiment, failed=failed, address=address
                )

    if isinstance(done, Run):
        finish_run(done, as_json)
    else:
        finish_sweep(done, as_json)
