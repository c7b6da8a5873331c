"""`hookyard run`, `hookyard sweep` and `hookyard resume`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.errors import INTERRUPTED, SOME_FAILED
from orchestrator.cli.output import echo, stdout_to_stderr
from orchestrator.cli.show import show_run, show_sweep
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.sections.experiment import Experiment
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep


def run(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="An experiment file. RUN@best, RUN@last or RUN@CHECKPOINT continues a run, or a sweep's best trial.",
        ),
    ],
    overrides: options.Overrides = None,
    storage: options.StorageFlag = "runs",
    name: options.Name = None,
    if_exists: options.IfNameExists = "error",
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="With --local: open Python's debugger when the run fails.")
    ] = False,
    skip_preflight: options.SkipPreflight = False,
    plan: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Run an experiment, or continue from a checkpoint of another run.

    Training runs on Ray Train workers, or in this process with --local.

    Example: hookyard run spirals.yaml optimizer.lr=0.05 --name slower
    """
    from orchestrator.cli.debug import check_terminal, post_mortem

    in_process = local or engine == "in-process"
    if pdb:
        check_terminal(in_process)
    experiment = _experiment(config, overrides or [])
    if experiment.sweep:
        raise UsageError(
            f"{config} has a `sweep` section; use hookyard sweep {shlex.quote(config)}"
        )
    if plan:
        from orchestrator.cli.plan import make_plan, show_plan

        return show_plan(make_plan(experiment, storage, name, address, if_exists), as_json)
    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs import driver

    skip = in_process or skip_preflight
    with post_mortem(pdb), stdout_to_stderr(), preflight(address, storage, experiment, skip=skip):
        done = driver.run(
            experiment,
            storage,
            name,
            engine=engine,
            local=local,
            address=address,
            if_exists=if_exists,
        )
    return finish_run(done, as_json)


def sweep(
    config: options.Config,
    overrides: options.Overrides = None,
    storage: options.StorageFlag = "runs",
    name: options.Name = None,
    if_exists: options.IfNameExists = "error",
    address: options.Address = None,
    local: options.Local = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End the sweep when a trial fails.")
    ] = False,
    skip_preflight: options.SkipPreflight = False,
    plan: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the trials of a sweep, and print the values, the metric and the cost of each.

    Example: hookyard sweep spirals_sweep.yaml --plan
    """
    from orchestrator.experiment.load import load_experiment

    experiment = load_experiment(config, overrides or [])
    if experiment.sweep is None:
        raise UsageError(
            f"{config} has no `sweep` section; add one, or use `hookyard run {shlex.quote(str(config))}`"
        )
    if plan:
        from orchestrator.cli.plan import make_plan, show_plan

        return show_plan(make_plan(experiment, storage, name, address, if_exists), as_json)
    from orchestrator.cluster.preflight import preflight
    from orchestrator.sweeps import driver

    with stdout_to_stderr(), preflight(address, storage, experiment, skip=local or skip_preflight):
        done = driver.sweep(
            experiment,
            storage,
            name,
            local=local,
            address=address,
            fail_fast=fail_fast,
            if_exists=if_exists,
        )
    return finish_sweep(done, as_json)


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
    from orchestrator.disk.run_folder import RunFolder, errors_before_start

    with errors_before_start():
        folder = RunFolder.open(run)
        metadata = folder.read_metadata()
    if metadata.sweep is None and failed:
        raise UsageError(f"{run} is a single run; --failed is for sweeps")
    if metadata.sweep and (workers is not None or from_start):
        raise UsageError(f"{run} is a sweep; --workers and --from-start are for single runs")
    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs import driver as runs
    from orchestrator.runs.result import Run

    done: Run | Sweep
    with folder.lease(force=force_lease) as lease:
        experiment = runs.load_experiment_to_resume(folder, workers)
        skip = metadata.local or skip_preflight
        with stdout_to_stderr(), preflight(address, run, experiment, skip=skip):
            if metadata.sweep is None:
                done = runs.resume_with_lease(
                    folder, lease, workers=workers, address=address, from_start=from_start
                )
            else:
                from orchestrator.sweeps import resume as sweeps

                done = sweeps.resume_with_lease(folder, lease, failed=failed, address=address)
    if isinstance(done, Run):
        finish_run(done, as_json)
    else:
        finish_sweep(done, as_json)


def _experiment(config: str, overrides: list[str]) -> Experiment:
    """Load an experiment file, or the experiment that continues from `RUN@CHECKPOINT`."""
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.load import load_experiment

    path, at, label = config.rpartition("@")
    if Path(config).is_file() or not at or "/" in label:
        folder = RunFolder(config)
        if not config.endswith((".yaml", ".yml")) and folder.exists():
            command = f"hookyard run {shlex.quote(f'{folder}@best')}"
            raise UsageError(
                f"{folder} is a run, not an experiment file. To continue its best checkpoint as a new run: {command}"
            )
        return load_experiment(config, overrides)
    return run_or_best_trial(RunFolder.open(path)).continue_from(label, overrides)


def run_or_best_trial(folder: RunFolder) -> Run:
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep

    return Sweep(folder).best if folder.read_metadata().sweep else Run(folder)


def finish_run(done: Run, as_json: bool) -> None:
    """Print the results of a run and what to do next; exit with 130 if it was interrupted."""
    show_run(done.folder, as_json)
    if not as_json:
        path = shlex.quote(str(done.folder))
        _print_next(f"hookyard stats {path} --by rank", f"hookyard report {path}")
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)


def finish_sweep(done: Sweep, as_json: bool) -> None:
    """Print the results of a sweep; exit with 130 if it was interrupted, with 3 if trials
    failed."""
    from orchestrator.sweeps.end import count_failed_trials

    show_sweep(done, as_json)
    if not as_json:
        _print_next(f"hookyard report {shlex.quote(str(done.folder))}")
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if count_failed_trials(done):
        raise typer.Exit(SOME_FAILED)


def _print_next(*commands: str) -> None:
    echo("\n".join(["Next:", *(f"  {command}" for command in commands)]), err=True)
