"""Detection of nodes that are about to be preempted, such as spot machines. Runs in the driver."""

from collections.abc import Callable
from time import monotonic

from ray.util.placement_group import PlacementGroup, placement_group_table

from orchestrator.loop.report import Report
from orchestrator.loop.stopping import INTERRUPTED
from orchestrator.private_api.ray_core import draining_nodes

POLL_INTERVAL_S = 2.0
"""Seconds between two requests to Ray for draining nodes."""


class PreemptionWatch:
    """Watch for draining nodes of a run's ranks: by an autoscaler, or by `ray start --block` after
    SIGTERM.

    `nodes` returns the ids of the ranks' nodes, and `show_line` shows a line.
    """

    def __init__(self, nodes: Callable[[], set[str]], show_line: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._show_line = show_line
        self._poll_at = monotonic()
        self._leaving: set[str] = set()

    def is_warned(self) -> bool:
        """Return whether to save and continue on other nodes; polls Ray periodically."""
        # Poll at each call while nodes are leaving, because the next attempt may already run on
        # other nodes.
        if self._leaving or monotonic() >= self._poll_at:
            self._poll_at = monotonic() + POLL_INTERVAL_S
            draining = draining_nodes()
            leaving = draining and draining & self._nodes()
            if leaving - self._leaving:
                noun = "nodes" if len(leaving) > 1 else "node"
                names = ", ".join(sorted(node[:8] for node in leaving))
                self._show_line(
                    f"{noun} {names} will be taken away; the ranks save and continue elsewhere"
                )
            self._leaving = leaving
        return bool(self._leaving)


def find_nodes_of(group: PlacementGroup) -> set[str]:
    """Return the ids of the nodes of a placement group that have been allocated so far."""
    return set(filter(None, placement_group_table(group).get("bundles_to_node_id", {}).values()))


def is_preempted(report: Report, is_stop_requested: Callable[[], bool]) -> bool:
    """Return whether a run saved and stopped because of a preemption, not for its user or a
    hook."""
    return report.interrupted and report.stopped == (INTERRUPTED,) and not is_stop_requested()
