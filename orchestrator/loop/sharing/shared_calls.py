"""The calls of hooks in a training that several runs share. Runs in workers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hooks.due_calls import Call
from hooks.event_plan import Plan
from hooks.hook import WITHIN_ITERATION
from hooks.metrics.names import get_kind
from hooks.state import State
from orchestrator.errors import RunError
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.sharing.own_fields import OwnFields

TRAINING_EVENTS = ("on_start", "on_phase_start", *WITHIN_ITERATION, "on_phase_end")
"""Events at the start and during training phases. The hooks of all runs are called in one merged
order."""
REQUESTED_BY_RUN = "requested by a hook of one run"
"""Reason of the training for a checkpoint that only some runs save."""


def merge_calls(event: str, first: Plan, others: Iterable[HookedRun]) -> list[Call]:
    """Return the calls of the first run's plan and of other runs for an event; each run's calls keep
    the order that they have when it trains alone."""
    calls = list(first.calls[event])
    for run in others:
        position = 0
        for call in run.plan.calls[event]:
            if call.name in run.own_hooks:
                calls.insert(position, call)
            else:
                names = [other.name for other in calls]
                position = names.index(call.name)
            position += 1
    return calls


def use_own_fields(call: Call, own_fields: OwnFields) -> Call:
    """Return a call that puts its run's own fields into the state meanwhile.

    If it requests a checkpoint within a training phase, the training requests one too. Raises
    RunError if it requests a stop there.
    """
    is_within_iteration = call.event in WITHIN_ITERATION

    def call_for_run(state: State, *arguments: Any) -> None:
        with own_fields:
            call.run(state, *arguments)
            if not is_within_iteration or state.phase != "train":
                return
            if state.stop_reasons or state.pause_reasons:
                raise RunError(
                    f"hook '{call.name}' of {state.name} requests a stop or pause within a"
                    " training phase that other trials share; set sweep.share_training: false"
                )
            is_checkpoint_requested = bool(state.checkpoint_reasons)
        if is_checkpoint_requested:
            state.request_checkpoint(REQUESTED_BY_RUN)

    return replace(call, run=call_for_run)


def share_metrics(call: Call, hook_metrics: dict[str, Any]) -> Call:
    """Return a call that also stores the metrics that it adds to a report, for the other runs."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {*metrics, *hook_metrics}
        call.run(state, metrics)
        if get_kind(state.phase) != "test":
            hook_metrics.update(
                {name: value for name, value in metrics.items() if name not in before}
            )

    return replace(call, run=run)
