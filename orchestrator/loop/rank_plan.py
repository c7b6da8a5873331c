"""The plan of a rank, which has the same collective hooks as those of the other ranks."""

from collections.abc import Mapping

from hooks.event_plan import Plan
from hooks.hook import Hook
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
    return plan
