"""`--plan`: what a run or sweep would do, without doing it."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.output import print_json, print_table
from orchestrator.config.source import Predecessor

if TYPE_CHECKING:
    from orchestrator.config.experiment import Experiment, Workers
    from orchestrator.config.sweep import Sweep


def show_plan(
    experiment: Experiment, storage: str, name: str | None, as_json: bool, address: str | None = None
) -> None:
    """Prints the resolved experiment, the order of its hooks, its resources and where its results would go.

    What a cluster at `address` has is not asked: nothing is connected, nothing is started.
    """
    plan = plan_of(experiment, storage, name, address)
    if as_json:
        print_json(plan)
        return
    from orchestrator.config.load import to_yaml

    typer.echo(to_yaml(experiment))
    _print_hooks(plan["hooks"])
    typer.echo("\n".join(_lines(plan)))


def plan_of(experiment: Experiment, storage: str, name: str | None, address: str | None = None) -> dict[str, Any]:
    """The plan as plain data."""
    from orchestrator.config.experiment import chosen_name
    from orchestrator.config.load import to_dict

    workers = experiment.workers
    asked = {"cpu": workers.least * workers.cpus, "gpu": float(workers.least if workers.gpu else 0)}
    present = None if address else _present()
    before = experiment.source.goes_on_from
    plan: dict[str, Any] = {
        "path": f"{storage.rstrip('/')}/{chosen_name(experiment, name)}",
        "resources": {"asked": asked, "present": present, "address": address},
        "goes_on_from": before and asdict(before),
        "hooks": _hook_order(experiment),
        "config": to_dict(experiment),
    }
    if experiment.sweep is not None:
        plan["sweep"] = _sweep(experiment.sweep, experiment.workers, present)
    return plan


def _hook_order(experiment: Experiment) -> dict[str, dict[str, list[str]]]:
    from hooks import Plan
    from orchestrator.config.resolve import resolve

    hooks = resolve(experiment.source).hooks
    order = {"rank 0": Plan(hooks).table()}
    if experiment.workers.most > 1:
        order["other ranks"] = Plan(hooks, rank=1, local_rank=1).table()
    return order


def _present() -> dict[str, float]:
    import torch

    return {"cpu": float(os.cpu_count() or 1), "gpu": float(torch.cuda.device_count())}


def _sweep(sweep: Sweep, workers: Workers, present: dict[str, float] | None) -> dict[str, Any]:
    from orchestrator.config.space import count_trials, trials_at_once

    trials = count_trials(sweep)
    here = present and {resource.upper(): amount for resource, amount in present.items()}
    return {"trials": trials, "repeats": sweep.repeats, "at_once": here and trials_at_once(sweep, trials, workers, [here])}


def _print_hooks(order: dict[str, dict[str, list[str]]]) -> None:
    events = list(dict.fromkeys(event for table in order.values() for event in table))
    rows = [(event, *(", ".join(table.get(event, ["-"])) for table in order.values())) for event in events]
    print_table(("event", *order), rows)
    typer.echo("")


def _lines(plan: dict[str, Any]) -> list[str]:
    resources = plan["resources"]
    asked, present = resources["asked"], resources["present"]
    where = f"at {resources['address']}: not asked" if present is None else f"on this machine: {_amounts(present)}"
    lines = [f"asks for  {_amounts(asked)}; {where}", f"writes to {plan['path']}"]
    if plan["goes_on_from"]:
        before = Predecessor(**plan["goes_on_from"])
        lines.insert(0, f"goes on from {before}, sha256 {before.sha256[:12]}")
    missing = [kind for kind, amount in asked.items() if present is not None and amount > present[kind]]
    if missing:
        lines.insert(1, f"does not fit: {', '.join(missing)} asked for is more than there is on this machine")
    if "sweep" in plan:
        at_once, repeats = plan["sweep"]["at_once"], plan["sweep"]["repeats"]
        seeds = f", each configuration with {repeats} seeds" if repeats > 1 else ""
        rate = "" if at_once is None else f", {at_once} at a time ({_amounts(asked)} each)"
        lines.append(f"trials    {plan['sweep']['trials']}{seeds}{rate}")
    return lines


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind.upper()}{'s' if amount != 1 else ''}" for kind, amount in resources.items())
