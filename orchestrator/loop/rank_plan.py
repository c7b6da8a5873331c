"""The plan of a rank, which has the same collective hooks as those of the other ranks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hooks.due_calls import Call
from hooks.event_plan import Plan
from hooks.hook import Hook
from hooks.metrics.names import REPORT_ENTRIES
from hooks.state import State
from orchestrator.errors import RankMismatch
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.world import World


def make_plan(hooks: Mapping[str, Hook], world: World, clock: SpanClock) -> Plan:
    """Return the plan of this rank; collective.

    Raises RankMismatch if ranks run different collective hooks, because they would deadlock.
    """
    plan = Plan(hooks, world.rank, world.local_rank, clock.device_mark)
    collective_hooks = [
        f"{name}:{type(hook).__name__}" for name, hook in plan.hooks.items() if hook.collective
    ]
    signatures = world.gather(collective_hooks)
    for rank, signature in enumerate(signatures):
        if signature != signatures[0]:
            raise RankMismatch(
                f"ranks must have the same collective hooks; rank {rank} has {signature} and"
                f" rank 0 has {signatures[0]}"
            )
    return plan.replace_calls({"on_report": map(_protect_entries, plan.calls["on_report"])})


def _protect_entries(call: Call) -> Call:
    """Return a call that fails if the hook replaces an entry of the report to which it adds
    metrics; if its failures are only logged, the report keeps the entry."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {name: metrics[name] for name in REPORT_ENTRIES & metrics.keys()}
        try:
            call.run(state, metrics)
        finally:
            replaced = [
                name
                for name in sorted(REPORT_ENTRIES & metrics.keys())
                if metrics[name] is not before.get(name)
            ]
            for name in replaced:
                del metrics[name]
            metrics.update(before)
        if replaced:
            raise ValueError(
                f"`{replaced[0]}` is an entry of every report; choose another name for the metric"
            )

    return replace(call, run=run)
