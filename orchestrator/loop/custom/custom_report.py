"""The reports that a task's own `train` yields: checked, and averaged across ranks. Runs in workers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter, itemgetter
from statistics import mean
from typing import Any

from torch import Tensor

from hooks.metrics.names import find_phase
from orchestrator.errors import RankMismatch, TaskError
from orchestrator.loop.task_errors import describe
from orchestrator.loop.world import World
from orchestrator.user_code.failures import find_source_location


@dataclass(frozen=True)
class RoundEnd:
    """How a round of the task's own `train` ended: with a report that it yielded, or because it
    returned."""

    metrics: Mapping[str, float]
    """Metrics of the report; empty if `train` returned."""
    has_returned: bool = False

    def describe(self) -> str:
        """Return what `train` did, for a message that names the rank."""
        return "has ended" if self.has_returned else f"yields {', '.join(sorted(self.metrics))}"


def average_round_ends(own: RoundEnd, method: Callable[..., Any], world: World) -> RoundEnd:
    """Return how the round of the task's `method` ended on all ranks, with the means of their
    metrics. Collective.

    Raises RankMismatch if ranks differ in the names of the metrics, or if only some have returned.
    """
    ranks = world.gather(own)
    expected = ranks[0].describe()
    for rank, end in enumerate(ranks):
        if end.describe() != expected:
            raise RankMismatch(
                f"train() must yield the same metrics on all ranks, but rank 0 {expected} and"
                f" rank {rank} {end.describe()}{find_source_location(method)}"
            )
    metrics = [*map(attrgetter("metrics"), ranks)]
    means = {name: mean(map(itemgetter(name), metrics)) for name in metrics[0]}
    return RoundEnd(means, has_returned=own.has_returned)


def convert_report(report: Any, method: Callable[..., Any]) -> dict[str, float]:
    """Return what the task's `method` yielded as plain numbers; raises TaskError unless it is a
    mapping of metrics."""
    problem = _find_problem(report)
    if problem:
        raise TaskError(f"train() yields {problem}{find_source_location(method)}")
    return {name: _to_float(value) for name, value in report.items()}


def _find_problem(report: Any) -> str | None:
    """Return why something is not a report; None if it is one."""
    if not isinstance(report, Mapping) or not report:
        return f"{describe(report)}; expected a mapping of metrics to numbers, such as {{'train/loss': 0.5}}"
    for name, value in report.items():
        if not isinstance(name, str) or not find_phase(name) or not name.partition("/")[2]:
            return f"{name!r}; metrics begin with train/, val/ or test/, as in 'train/{name}'"
        is_number = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real)
        if not is_number:
            return f"{describe(value)} for '{name}'; expected a number"
    return None


def _to_float(value: Any) -> float:
    return float(value.item() if isinstance(value, Tensor) else value)
