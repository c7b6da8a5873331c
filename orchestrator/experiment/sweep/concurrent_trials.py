"""The number of trials that fit on the nodes of a cluster at a time."""

from collections.abc import Iterable, Mapping

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers


def count_concurrent_trials(
    sweep: SweepSettings, trials: int, workers: Workers, nodes: Iterable[Mapping[str, float]]
) -> int:
    """Return the number of trials that fit side by side on nodes with these resources.

    With a range of ranks, each trial takes the maximum, so that trials do not compete; a single one
    runs with fewer.
    """
    slots = sum(_count_ranks(node, workers) for node in nodes)
    fitting = max(slots // workers.max_count, min(1, slots // workers.min_count))
    return min(trials, fitting, sweep.max_concurrent or trials)


def _count_ranks(node: Mapping[str, float], workers: Workers) -> int:
    """Return how many ranks fit on a node."""
    return min(
        _count_units(node.get(name, 0)) // max(1, _count_units(amount))
        for name, amount in workers.bundle.items()
    )


def _count_units(amount: float) -> int:
    """Count a resource in Ray's own unit, in which 0.6 holds 0.2 three times."""
    return round(amount * 10_000)
