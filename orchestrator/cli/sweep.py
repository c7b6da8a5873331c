"""`hookyard sweep CONFIG [key=value ...]`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.errors import INTERRUPTED, SOME_FAILED
from orchestrator.cli.output import echo, talk
from orchestrator.cli.show import show_sweep

if TYPE_CHECKING:
    from orchestrator.sweeps.results.result import Sweep


def sweep(
    config: options.Config,
    overrides: options.Overrides = None,
    storage: options.StorageFlag = "runs",
    name: options.Name = None,
    address: options.Address = None,
    local: options.Local = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End the sweep with the first trial that fails.")
    ] = False,
    skip_preflight: options.SkipPreflight = False,
    plan: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Runs the trials of a sweep, and prints what each chose, reached and cost."""
    from orchestrator.config.load import load_experiment

    experiment = load_experiment(config, overrides or [])
    if plan:
        from orchestrator.cli.plan import show_plan

        return show_plan(experiment, storage, name, as_json, address)
    from orchestrator.cluster.preflight import preflight
    from orchestrator.sweeps import driver

    with talk(), preflight(address, storage, experiment, skip=local or skip_preflight):
        done = driver.sweep(experiment, storage, name, local=local, address=address, fail_fast=fail_fast)
    return finish(done, as_json)


def finish(done: Sweep, as_json: bool) -> None:
    """Prints what a sweep made; exits with 130 where it was interrupted, 3 where trials failed."""
    from orchestrator.sweeps import driver

    show_sweep(done, as_json)
    hints = [f"hookyard report {shlex.quote(done.path)}"]
    # The first trial stands for all: asking thousands of folders on a remote storage would take longer than the hint is
    # worth.
    if any("tensorboard" in trial.folder.storage.names() for trial in done.runs[:1]):
        hints.append(f"tensorboard --logdir {done.path}/trials")
    echo(f"Look at it: {'   or   '.join(hints)}", err=True)
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if driver.failed_trials(done):
        raise typer.Exit(SOME_FAILED)
