"""`--plan`: what a run or sweep would do, without doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.config.text.source import ParentCheckpoint
from orchestrator.engines.ray_environment import Resources, amount_in_words, local_resources

if TYPE_CHECKING:
    from orchestrator.config.sections.experiment import Experiment
    from orchestrator.config.sections.sweep import Sweep


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

    echo(to_yaml(experiment))
    _print_hooks(plan["hooks"])
    echo("\n".join(_lines(plan)))


def plan_of(experiment: Experiment, storage: str, name: str | None, address: str | None = None) -> dict[str, Any]:
    """The plan as plain data."""
    from orchestrator.config.load import to_dict
    from orchestrator.config.sections.experiment import check_run_name

    workers = experiment.workers
    asked = Resources.asked_by(workers)
    present = None if address else local_resources()
    before = experiment.source.continued_from
    plan: dict[str, Any] = {
        "path": f"{storage.rstrip('/')}/{check_run_name(experiment, name)}",
        "resources": {"asked": _by_kind(asked), "present": present and _by_kind(present), "address": address},
        "continued_from": before and asdict(before),
        "hooks": _hook_order(experiment),
        "config": to_dict(experiment),
    }
    if experiment.sweep is not None:
        plan["sweep"] = _sweep(experiment, experiment.sweep, present)
    return plan


def _hook_order(experiment: Experiment) -> dict[str, dict[str, list[str]]]:
    from hooks import Plan
    from orchestrator.config.resolve import resolve

    hooks = resolve(experiment.source).hooks
    order = {"rank 0": Plan(hooks).table()}
    if experiment.workers.max_count > 1:
        order["other ranks"] = Plan(hooks, rank=1, local_rank=1).table()
    return order


def _by_kind(resources: Resources) -> dict[str, float]:
    """Amounts of resources: `cpu`, `gpu`, and the others as Ray names them."""
    return {"cpu": float(resources.cpus), "gpu": float(resources.gpus), **resources.others}


def _resources(amounts: dict[str, float]) -> Resources:
    return Resources(
        amounts["cpu"], amounts["gpu"], {kind: amount for kind, amount in amounts.items() if kind not in ("cpu", "gpu")}
    )


def _sweep(experiment: Experiment, sweep: Sweep, present: Resources | None) -> dict[str, Any]:
    from orchestrator.config.checks.shared_training import shared_paths
    from orchestrator.config.checks.space import count_trainings, count_trials, trials_at_once
    from orchestrator.sweeps.search.sampling import drawn_trials

    trials, shared = count_trials(sweep), shared_paths(experiment.source, sweep)
    trainings = count_trainings(sweep)
    if shared.paths and sweep.search != "optuna":
        trainings = len(shared.together([*enumerate(drawn_trials(sweep, experiment.seed))]))
    at_once = None if present is None else trials_at_once(sweep, trainings, experiment.workers, [present.amounts()])
    sharing = {"trainings": trainings, "shared": [*shared.paths], "not_shared": {**shared.reasons}}
    return {
        "trials": trials,
        "repeats": sweep.repeats,
        "scheduler": sweep.scheduler.type,
        "at_once": at_once,
        **({"shared_training": sharing} if shared.paths or shared.reasons else {}),
    }


def _print_hooks(order: dict[str, dict[str, list[str]]]) -> None:
    events = list(dict.fromkeys(event for table in order.values() for event in table))
    rows = [(event, *(", ".join(table.get(event, ["-"])) for table in order.values())) for event in events]
    print_table(("event", *order), rows)
    echo("")


def _lines(plan: dict[str, Any]) -> list[str]:
    resources = plan["resources"]
    asked, present = _resources(resources["asked"]), resources["present"] and _resources(resources["present"])
    where = f"at {resources['address']}: not asked" if present is None else f"on this machine: {present}"
    lines = [f"asks for  {asked}; {where}", f"writes to {plan['path']}"]
    if plan["continued_from"]:
        before = ParentCheckpoint(**plan["continued_from"])
        lines.insert(0, f"goes on from {before}, sha256 {before.sha256[:12]}")
    beyond = present and asked.beyond(present)
    if beyond:
        short = ", ".join(
            f"{amount_in_words(kind, want)} asked for, {amount_in_words(kind, have)} there"
            for kind, (want, have) in beyond.items()
        )
        lines.insert(1, f"does not fit: {short}")
    if "sweep" in plan:
        at_once, repeats = plan["sweep"]["at_once"], plan["sweep"]["repeats"]
        seeds = f", each configuration with {repeats} seeds" if repeats > 1 else ""
        rate = "" if at_once is None else f", {at_once} at a time ({asked} each)"
        sharing = plan["sweep"].get("shared_training", {"shared": [], "not_shared": {}})
        trainings = f" in {sharing['trainings']} trainings" if sharing["shared"] else ""
        lines.append(f"trials    {plan['sweep']['trials']}{trainings}{seeds}{rate}")
        lines += [f"shared    {path}" for path in sharing["shared"]]
        lines += [
            f"not shared {f'{path}: ' if path else 'each trial trains by itself: '}{reason}"
            for path, reason in sharing["not_shared"].items()
        ]
    return lines
