"""Metrics of a phase: means over the samples of all ranks, and the task's meters."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, SupportsFloat

from torch import Tensor

from orchestrator.errors import TaskError
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.user_code import find_source_location


class Means:
    """Sums and counts by name.

    A sum stays on its device until it is read, so adding to it never synchronizes. On the CPU it is
    a Python float, which is faster and as exact as float64.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._counts: dict[str, float] = {}

    def add(self, name: str, total: float | Tensor, count: float) -> None:
        # The mean over an empty batch is NaN.
        self._totals[name] = self._totals.get(name, 0.0) + (total if count else 0.0)
        self._counts[name] = self._counts.get(name, 0) + count

    def has(self, name: str) -> bool:
        return name in self._totals

    def copy(self) -> "Means":
        copy = Means()
        copy._totals = dict(self._totals)
        copy._counts = dict(self._counts)
        return copy

    def state_dict(self) -> dict[str, list[float]]:
        return {name: [float(total), self._counts[name]] for name, total in self._totals.items()}

    def include(self, state: dict[str, list[float]]) -> None:
        """Add the sums and counts of a `state_dict`, from any rank."""
        for name, (total, count) in state.items():
            self.add(name, total, count)

    @staticmethod
    def merge_ranks(states: Iterable[dict[str, list[float]]]) -> dict[str, float]:
        """Return the means across all ranks, from the `state_dict` of each.

        A rank may have no sample.
        """
        means = Means()
        for state in states:
            means.include(state)
        return {
            name: total / means._counts[name]
            for name, total in means._totals.items()
            if means._counts[name]
        }


def reduce_phase(
    task: Task, prefix: str, means: Means, meters: Mapping[str, Any], world: World
) -> dict[str, float]:
    """Return the means and the meters' values across all ranks, as `<prefix>/<name>`; collective.

    Raises TaskError for a meter whose values differ between ranks, are not numbers, or have the
    name of a mean.
    """
    computed_here = {name: _flatten(name, meter.compute()) for name, meter in meters.items()}
    states, computed = zip(*world.gather((means.state_dict(), computed_here)), strict=True)
    values = Means.merge_ranks(states)
    for name, numbers in computed[0].items():
        check_ranks_agree(task, prefix, name, [ranks.get(name, {}) for ranks in computed])
        duplicates = numbers.keys() & values.keys()
        if duplicates:
            raise TaskError(
                f"meters() returns '{name}', but {prefix}/{min(duplicates)} exists already; rename one of them"
            )
        values |= numbers
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _flatten(name: str, value: Any) -> dict[str, float]:
    """Return a meter's numbers by name.

    Those of a vector are `<name>/<index>`, those of a mapping `<name>/<key>`.
    """
    if isinstance(value, Mapping):
        numbers: dict[str, float] = {}
        for key, part in value.items():
            numbers |= _flatten(f"{name}/{key}", part)
        return numbers
    shape = tuple(getattr(value, "shape", ()))
    if isinstance(value, SupportsFloat) and math.prod(shape) == 1:
        return {name: float(value)}
    if len(shape) == 1:
        return {f"{name}/{index}": float(number) for index, number in enumerate(value)}
    returned = f"values of shape {shape}" if shape else f"a {type(value).__name__}"
    raise TaskError(
        f"compute() of the meter '{name}' returns {returned}; expected a number, a vector, or a mapping of these"
    )


def check_ranks_agree(
    task: Task, prefix: str, meter: str, ranks: Sequence[Mapping[str, float]]
) -> None:
    """Raise TaskError if ranks have different values of a meter, beyond rounding errors."""
    for name in dict.fromkeys(chain.from_iterable(ranks)):
        first = ranks[0].get(name)
        for rank, values in enumerate(ranks):
            value = values.get(name)
            if not _are_close(value, first):
                raise TaskError(
                    f"the meter '{meter}' differs between ranks: {prefix}/{name} is {first} on rank 0 and {value} on"
                    f" rank {rank}; its compute() must combine all ranks, as torchmetrics does with"
                    f" dist_reduce_fx{find_source_location(task.meters)}"
                )


def _are_close(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    if math.isnan(value):
        return math.isnan(other)
    return math.isclose(value, other, rel_tol=1e-6)
