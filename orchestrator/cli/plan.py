"""`--plan`: what a run or sweep would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.engines.local_resources import find_local_resources
from orchestrator.engines.resources import Resources

if TYPE_CHECKING:
    from orchestrator.disk.if_exists import IfExists
    from orchestrator.experiment.checked_experiment import CheckedExperiment
    from orchestrator.experiment.sections.sweep import SweepSettings
    from orchestrator.experiment.yaml.origins import ParentCheckpoint


@dataclass(frozen=True)
class ExperimentPlan:
    """Plan of a run or a sweep. `--json` prints its fields."""

    path: str
    """Folder of the run or sweep."""
    resources: ResourcePlan
    continued_from: ParentCheckpoint | None
    hooks: Mapping[str, Mapping[str, list[str]]]
    """Names of the hooks of each event in order, for rank 0 and for other ranks."""
    config: Mapping[str, Any]
    """The resolved experiment."""
    sweep: SweepPlan | None


@dataclass(frozen=True)
class ResourcePlan:
    """Amounts of resources by Ray's names."""

    required: Mapping[str, float]
    present: Mapping[str, float] | None
    """Those of this machine; None with an address, because a plan connects to no cluster."""
    address: str | None


@dataclass(frozen=True)
class SweepPlan:
    """The trials of a sweep."""

    trials: int
    repeats: int
    """Trials of each configuration."""
    repeated_path: str
    """Path that differs between the repeats."""
    scheduler: str
    at_once: int | None
    """Trials at a time; None if the resources are unknown."""
    shared_training: SharedTraining | None
    """None if no path of a hook is swept."""


@dataclass(frozen=True)
class SharedTraining:
    """Trials that share a training."""

    trainings: int
    shared: Sequence[str]
    """Paths whose values share a training."""
    not_shared: Mapping[str, str]
    """Reason by path."""
    reason_for_all: str = ""
    """Why no trials can share a training; empty if some can, or if each path has its own reason."""


def make_plan(
    experiment: CheckedExperiment,
    storage: str,
    name: str | None,
    address: str | None = None,
    if_exists: IfExists = "error",
) -> ExperimentPlan:
    """Plan a run or sweep.

    Connects to nothing, except to the storage for `if_exists="number"`.
    """
    from orchestrator.disk.new_run import find_free_name
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.load import to_dict
    from orchestrator.experiment.sections.run_name import choose_run_name

    run_name = choose_run_name(name, experiment.name)
    if if_exists == "number":
        run_name = find_free_name(RunFolder(storage, run_name)).name
    required = Resources.required_by(experiment.workers).amounts
    present = None if address else find_local_resources().amounts
    return ExperimentPlan(
        path=f"{storage.rstrip('/')}/{run_name}",
        resources=ResourcePlan(required, present, address),
        continued_from=experiment.source.continued_from,
        hooks=_order_hooks(experiment),
        config={**to_dict(experiment), "name": run_name},
        sweep=_plan_sweep(experiment, experiment.sweep, present) if experiment.sweep else None,
    )


def _order_hooks(experiment: CheckedExperiment) -> dict[str, dict[str, list[str]]]:
    from hooks.event_plan import Plan

    hooks = experiment.get_resolved().hooks
    order = {"rank 0": Plan(hooks).names_by_event()}
    if experiment.workers.max_count > 1:
        order["other ranks"] = Plan(hooks, rank=1, local_rank=1).names_by_event()
    return order


def _plan_sweep(
    experiment: CheckedExperiment, sweep: SweepSettings, present: Mapping[str, float] | None
) -> SweepPlan:
    from orchestrator.experiment.sweep.concurrent_trials import count_concurrent_trials
    from orchestrator.experiment.sweep.shared_training import find_shared_paths
    from orchestrator.experiment.sweep.trial_counts import count_trainings, count_trials
    from orchestrator.sweeps.search.drawing import draw_trials

    sharing = find_shared_paths(experiment.source, sweep)
    trainings = count_trainings(sweep)
    if sharing.paths and sweep.search.type != "optuna":
        trainings = len(sharing.group_trials([*enumerate(draw_trials(sweep, experiment.seed))]))
    at_once = None
    if present is not None:
        at_once = count_concurrent_trials(sweep, trainings, experiment.workers, [present])
    shared_training = None
    if sharing.paths or sharing.reasons or sharing.reason_for_all:
        shared_training = SharedTraining(
            trainings, sharing.paths, sharing.reasons, sharing.reason_for_all or ""
        )
    return SweepPlan(
        trials=count_trials(sweep),
        repeats=sweep.repeat_count,
        repeated_path=sweep.repeated_path,
        scheduler=sweep.scheduler.type,
        at_once=at_once,
        shared_training=shared_training,
    )
