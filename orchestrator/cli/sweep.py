"""`hookyard sweep`: the trials of a sweep."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.finish import finish_sweep
from orchestrator.cli.output import stdout_to_stderr
from orchestrator.errors import UsageError


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
        from orchestrator.cli.plan import make_plan
        from orchestrator.cli.plan_text import show_plan

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
