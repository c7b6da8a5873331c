from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.checks.shared_training import SharedPaths
from orchestrator.config.sections.sweep import Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.search import TRIAL, make_search


class Draws:
    """The trials of a sweep one after the other, in this process: each search learns what the trials before reached."""

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial] | None = None) -> None:
        shared = SharedPaths(tuple(path for path, domain in settings.space.items() if domain.kind == "fan_out"))
        self.search = make_search(settings, seed, previous or {}, shared)

    def together(self) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """Number and values of those that share each training."""
        for drawn in range(self.search.count):
            trial = self.search.suggest(str(drawn))[TRIAL]
            yield [(one["number"], one["values"]) for one in (trial, *trial["followers"])]

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return (trial for (trial,) in self.together())

    def over(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Tells how a trial ended: its last report, or None where it failed."""
        self.search.ended(number, last)
