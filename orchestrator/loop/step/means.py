"""Means: the average of a value over all samples of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


class Means:
    """Sums and counts by name, reduced over ranks at the end of a phase. Worker process.

    A sum stays on its device until it is read, so adding to it never waits for the device; on the CPU it is a Python
    float, which is faster and as exact as float64.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, total: float | Tensor, count: int) -> None:
        """Adds the sum of a value over `count` samples."""
        self._totals[name] = self._totals.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count

    def copied(self) -> Means:
        """The same, which stays as it is when more is added to these."""
        again = Means()
        again.become(self)
        return again

    def become(self, other: Means) -> None:
        """Takes the sums and counts of others instead; whoever holds these sees it."""
        self._totals, self._counts = dict(other._totals), dict(other._counts)

    def state_dict(self) -> dict[str, list[float]]:
        """This rank's sums and counts."""
        return {name: [float(total), self._counts[name]] for name, total in self._totals.items()}

    def include(self, state: dict[str, list[float]]) -> None:
        """Adds what a `state_dict` gave, of this rank or of another."""
        for name, (total, count) in state.items():
            self.add(name, total, int(count))

    @staticmethod
    def over_ranks(states: Iterable[dict[str, list[float]]]) -> dict[str, float]:
        """Return the means over all ranks, of the `state_dict` of each; a rank may be without a sample."""
        means = Means()
        for state in states:
            means.include(state)
        return {name: total / means._counts[name] for name, total in means._totals.items() if means._counts[name]}
