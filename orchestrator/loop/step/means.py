"""Means over the samples of all ranks. Used in workers."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


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
