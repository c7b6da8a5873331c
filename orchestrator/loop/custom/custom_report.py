"""The reports that a task's own `train` yields: checked, and averaged across ranks. Runs in workers."""

from collections.abc import Callable, Mapping
from numbers import Real
from operator import itemgetter
from statistics import mean
from typing import Any

from torch import Tensor

from hooks.metrics.names import find_phase
from orchestrator.errors import RankMismatch, TaskError
from orchestrator.loop.task_errors import describe
from orchestrator.loop.world import World
from orchestrator.user_code import find_source_location

ENDED: Any = object()
"""What `average_report` gets from a rank whose training has ended, because a task may yield None."""


def average_report(
    report: Any, method: Callable[..., Any], world: World
) -> dict[str, float] | None:
    """Return the means across ranks of what `method` yielded; None if all ranks have ended.
    Collective.

    Raises RankMismatch if ranks differ, and TaskError for anything but metrics or `ENDED`.
    """
    ranks = world.gather(None if report is ENDED else _check_report(report, method))
    descriptions = [_describe(metrics) for metrics in ranks]
    for rank, description in enumerate(descriptions):
        if description != descriptions[0]:
            raise RankMismatch(
                f"train() must yield the same metrics on all ranks, but rank 0 {descriptions[0]} and"
                f" rank {rank} {description}{find_source_location(method)}"
            )
    if ranks[0] is None:
        return None
    return {name: mean(map(itemgetter(name), ranks)) for name in ranks[0]}


def _describe(metrics: Mapping[str, float] | None) -> str:
    return "has ended" if metrics is None else f"yields {', '.join(sorted(metrics))}"


def _check_report(report: Any, method: Callable[..., Any]) -> dict[str, float]:
    """Return a report as plain numbers; raises TaskError if it is not one."""
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
