"""`hookyard sweep CONFIG [key=value ...]`"""

from __future__ import annotations

import typer

from orchestrator.cli.errors import INTERRUPTED, SOME_FAILED
from orchestrator.cli.options import Address, AsJson, Config, Local, Name, Overrides, PlanOnly, StorageFlag
from orchestrator.cli.show import show_sweep


def sweep(
    config: Config,
    overrides: Overrides = None,
    storage: StorageFlag = "runs",
    name: Name = None,
    address: Address = None,
    local: Local = False,
    plan: PlanOnly = False,
    as_json: AsJson = False,
) -> None:
    """Runs the trials of a sweep, and prints what each chose, reached and cost."""
    from orchestrator.config.load import load_experiment

    experiment = load_experiment(config, overrides or [])
    if plan:
        from orchestrator.cli.plan import show_plan

        return show_plan(experiment, storage, name, as_json, address)
    from orchestrator.sweeps import driver

    done = driver.sweep(experiment, storage, name, local=local, address=address)
    show_sweep(done, as_json)
    typer.echo(f"Look at it: hookyard show {done.path}   or   tensorboard --logdir {done.path}/trials", err=True)
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if driver.failed_trials(done):
        raise typer.Exit(SOME_FAILED)
    return None
