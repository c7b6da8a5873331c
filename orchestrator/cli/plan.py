"""`--plan`: what a run or sweep would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.engines.ray_environment import Resources, find_local_resources, format_amount

if TYPE_CHECKING:
    from orchestrator.disk.metadata import IfExists
    from orchestrator.experiment.sections.experiment import Experiment
    from orchestrator.experiment.sections.sweep import Sweep


def show_plan(
    experiment: Experiment,
    storage: str,
    name: str | None,
    as_json: bool,
    address: str | None = None,
    if_exists: IfExists = "error",
) -> None:
    """Print the resolved experiment, the order of its hooks, its resources and its folder.

    Connects to nothing, except to the storage for `if_exists="number"`.
    """
    plan = make_plan(experiment, storage, name, address, if_exists)
    if as_json:
        print_json(plan)
        return
    from orchestrator.experiment.yaml.writer import dump_yaml

    for label, text in _format_lines(plan, experiment, address):
        echo(f"{label + ':':<15} {text}")
    echo("")
    hooks_by_event = plan["hooks"].values()
    events: dict[str, None] = {}
    for names in hooks_by_event:
        events.update(dict.fromkeys(names))
    rows = []
    for event in events:
        cells = [", ".join(names.get(event, ["-"])) for names in hooks_by_event]
        rows.append((event, *cells))
    print_table(("event", *plan["hooks"]), rows)
    echo("")
    echo(dump_yaml(plan["config"]), nl=False)


def make_plan(
    experiment: Experiment,
    storage: str,
    name: str | None,
    address: str | None = None,
    if_exists: IfExists = "error",
) -> dict[str, Any]:
    from hooks import Plan
    from orchestrator.disk.new_run import find_free_name
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.load import to_dict
    from orchestrator.experiment.resolve import get_resolved
    from orchestrator.experiment.sections.experiment import check_run_name

    run_name = check_run_name(experiment, name)
    if if_exists == "number":
        run_name = find_free_name(RunFolder(storage, run_name)).name
    present = None if address else find_local_resources()
    parent = experiment.source.continued_from
    hooks = get_resolved(experiment).hooks
    order = {"rank 0": Plan(hooks).names_by_event()}
    if experiment.workers.max_count > 1:
        order["other ranks"] = Plan(hooks, rank=1, local_rank=1).names_by_event()
    plan: dict[str, Any] = {
        "path": f"{storage.rstrip('/')}/{run_name}",
        "resources": {
            "required": Resources.required_by(experiment.workers).amounts,
            "present": present and present.amounts,
            "address": address,
        },
        "continued_from": parent,
        "hooks": order,
        "config": {**to_dict(experiment), "name": run_name},
    }
    if experiment.sweep is not None:
        plan["sweep"] = _plan_sweep(experiment, experiment.sweep, present)
    return plan


def _plan_sweep(experiment: Experiment, sweep: Sweep, present: Resources | None) -> dict[str, Any]:
    from orchestrator.experiment.sweep.shared_training import find_shared_paths
    from orchestrator.experiment.sweep.space import (
        count_concurrent_trials,
        count_trainings,
        count_trials,
    )
    from orchestrator.sweeps.search.drawing import draw_trials

    sharing = find_shared_paths(experiment.source, sweep)
    trainings = count_trainings(sweep)
    if sharing.paths and sweep.search.type != "optuna":
        trainings = len(sharing.group_trials([*enumerate(draw_trials(sweep, experiment.seed))]))
    plan: dict[str, Any] = {
        "trials": count_trials(sweep),
        "repeats": sweep.repeat_count,
        "repeated_path": sweep.repeated_path,
        "scheduler": sweep.scheduler.type,
        "at_once": None
        if present is None
        else count_concurrent_trials(sweep, trainings, experiment.workers, [present.amounts]),
    }
    if sharing.paths or sharing.reasons:
        plan["shared_training"] = {
            "trainings": trainings,
            "shared": [*sharing.paths],
            "not_shared": {**sharing.reasons},
        }
    return plan


def _format_lines(
    plan: dict[str, Any], experiment: Experiment, address: str | None
) -> list[tuple[str, str]]:
    required = Resources.required_by(experiment.workers)
    present = None if address else find_local_resources()
    machine = f"this machine has {present}" if present else f"{address} was not asked"
    lines = [("resources", f"needs {required}, {machine}")]
    if parent := experiment.source.continued_from:
        lines.insert(0, ("continues from", f"{parent}, sha256 {parent.sha256[:12]}"))
    if missing := present and required.find_missing(present):
        shortages = (
            f"needs {format_amount(kind, needed)}, has {format_amount(kind, has)}"
            for kind, (needed, has) in missing.items()
        )
        lines.append(("does not fit", ", ".join(shortages)))
    lines.append(("folder", plan["path"]))
    if "sweep" in plan:
        at_once = plan["sweep"]["at_once"]
        repeats = plan["sweep"]["repeats"]
        path = plan["sweep"]["repeated_path"]
        kind = "seeds" if path == "seed" else f"values of {path}"
        repeated = f", {repeats} {kind} per configuration" if repeats > 1 else ""
        rate = "" if at_once is None else f", {at_once} at a time ({required} each)"
        sharing = plan["sweep"].get("shared_training", {"shared": [], "not_shared": {}})
        trainings = f" in {sharing['trainings']} trainings" if sharing["shared"] else ""
        lines.append(("trials", f"{plan['sweep']['trials']}{trainings}{repeated}{rate}"))
        lines += [("shared training over", path) for path in sharing["shared"]]
        lines += [
            ("not shared", f"{path}, because {reason}" if path else reason)
            for path, reason in sharing["not_shared"].items()
        ]
    return lines
