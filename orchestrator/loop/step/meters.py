"""Meters: metrics that are no mean over samples, each an object of the task's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

from orchestrator.config.python.user_code import source_location
from orchestrator.errors import RunError
from orchestrator.task import Task

MOST_RANKS = 8
"""How many ranks' values an error lists."""


def measured(name: str, meter: Any) -> dict[str, float]:
    """The values of a meter over all ranks, by name; collective. A number has the meter's own name, what a mapping or a
    vector holds `<name>/<key>` and `<name>/<index>`. Raises RunError for anything else."""
    value = meter.compute()
    if isinstance(value, Mapping):
        return {
            place: number for key, one in value.items() for place, number in _numbers_of(f"{name}/{key}", one).items()
        }
    return _numbers_of(name, value)


def _numbers_of(name: str, value: Any) -> dict[str, float]:
    """A number, or the numbers of a vector by their place."""
    shape = tuple(getattr(value, "shape", ()))
    if isinstance(value, SupportsFloat) and math.prod(shape) == 1:
        return {name: float(value)}
    if len(shape) == 1:
        return {f"{name}/{index}": float(one) for index, one in enumerate(value)}
    given = f"values of shape {shape}" if shape else f"a {type(value).__name__}"
    raise RunError(
        f"compute() of the meter '{name}' gives {given}, and must give one number, a vector of them, or a mapping of"
        " these by name; average over the rest (torchmetrics: average='macro'), or give a meter for each value"
    )


def refuse_different(task: Task, prefix: str, meter: str, of_ranks: Sequence[Mapping[str, float]]) -> None:
    """Raise RunError where ranks have computed different values of a meter; rounding apart."""
    for name in dict.fromkeys(name for per_rank in of_ranks for name in per_rank):
        values = [per_rank.get(name) for per_rank in of_ranks]
        if all(map(_are_close, values, values[:1] * len(values))):
            continue
        listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values[:MOST_RANKS]))
        more = ", ..." if len(values) > MOST_RANKS else ""
        raise RunError(
            f"the meter '{meter}' differs between ranks: {prefix}/{name} is {listed}{more}. Each rank's meter sees"
            " its own samples, so compute() must first combine its state over all ranks (all_reduce or"
            " all_gather_object of torch.distributed; torchmetrics does so with sync_on_compute=True, for states of"
            f" add_state with dist_reduce_fx); a mean over samples belongs in metrics(){source_location(task.meters)}"
        )


def _are_close(value: float | None, other: float | None) -> bool:
    """Whether two ranks agree on a value, as far as the order of sums lets them."""
    if value is None or other is None:
        return value is other
    return math.isclose(value, other, rel_tol=1e-6) or (math.isnan(value) and math.isnan(other))
