"""A run that shares its training with others: its plan, and its own fields of the state. Runs in
workers."""

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hooks.due_calls import Call
from hooks.event_plan import Plan
from hooks.hook import Hook
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.rank_plan import make_plan
from orchestrator.loop.run_building import build_run
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.run_share import RunShare
from orchestrator.loop.sharing.own_fields import OwnFields
from orchestrator.loop.sharing.shared_calls import TRAINING_EVENTS, share_metrics, use_own_fields
from orchestrator.loop.training import Training

EVENTS_FIRED_ONCE = ("on_load", "on_end", "on_exception")
"""Events that fire once in total for a hook of the training, not once per run."""


@dataclass(frozen=True)
class Member:
    """One of the runs that share a training: its experiment with all its hooks."""

    experiment: Experiment
    hooks: Mapping[str, Hook]
    context: RunContext

    @cached_property
    def own_hooks(self) -> dict[str, Hook]:
        """The hooks that only observe, and belong to this run alone."""
        return {name: hook for name, hook in self.hooks.items() if hook.observes}


def build_shared_run(
    training: Training,
    member: Member,
    index: int,
    hook_metrics: dict[str, Any],
    training_files: TrainingFiles,
) -> HookedRun:
    """Build a run of a training that has several.

    The hooks that observe are its own. All other hooks belong to the training, and the first run, which
    has `index` 0, provides them. Hooks of the training add their metrics to one report and to
    `hook_metrics`, from where the other runs take them. `training_files` are those that a run has
    already stored.
    """
    own_fields = _make_own_fields(training, member, index)
    plan = training.plan if index == 0 else _make_plan_of_follower(training, member)
    plan = _share_calls(plan, member.own_hooks, own_fields, hook_metrics)
    share = RunShare(
        own_hooks=member.own_hooks,
        index=index,
        own_fields=own_fields,
        training_files=training_files,
        hook_metrics=hook_metrics,
    )
    return build_run(training, member.experiment, member.context, plan, share)


def _make_plan_of_follower(training: Training, member: Member) -> Plan:
    """Return the plan of a run that is not the first, with the training's hooks instead of the same
    hooks of its experiment."""
    own_hooks = member.own_hooks
    training_hooks = training.plan.hooks
    shared = {name: training_hooks.get(name, hook) for name, hook in member.hooks.items()}
    plan = make_plan({**shared, **own_hooks}, member.context.world, training.clock)
    own_calls: dict[str, list[Call]] = {}
    for event in EVENTS_FIRED_ONCE:
        own_calls[event] = [call for call in plan.calls[event] if call.name in own_hooks]
    return plan.replace_calls(own_calls)


def _share_calls(
    plan: Plan, own_hooks: Collection[str], own_fields: OwnFields, hook_metrics: dict[str, Any]
) -> Plan:
    """Return a plan in which the calls of a run's own hooks see its own fields while it trains, and
    those of the training's hooks share their metrics."""
    calls: dict[str, list[Call]] = {
        "on_report": [
            call if call.name in own_hooks else share_metrics(call, hook_metrics)
            for call in plan.calls["on_report"]
        ]
    }
    for event in TRAINING_EVENTS:
        calls[event] = [
            use_own_fields(call, own_fields) if call.name in own_hooks else call
            for call in plan.calls[event]
        ]
    return plan.replace_calls(calls)


def _make_own_fields(training: Training, member: Member, run_index: int) -> OwnFields:
    state = training.state
    fields = {
        **member.context.make_state_fields(member.experiment),
        "info": ChainMap({}, state.info),
        "metrics": {},
        "evaluations": {"": state.evaluations[""]},
        "checkpoint_reasons": [],
        "stop_reasons": [],
        "pause_reasons": [],
    }
    return OwnFields(state, fields, run_index)
