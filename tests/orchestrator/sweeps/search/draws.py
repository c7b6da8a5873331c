from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.sweep import Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.search import TRIAL, make_search


class Draws:
    """The trials of a sweep one after the other, in this process: each search learns what the trials before reached."""

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial] | None = None) -> None:
        self.search = make_search(settings, seed, previous or {})
        self._drawn: dict[int, str] = {}

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for drawn in range(self.search.count):
            trial = self.search.suggest(str(drawn))[TRIAL]
            self._drawn[trial["number"]] = str(drawn)
            yield trial["number"], trial["values"]

    def over(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Tells how a trial ended: its last report, or None where it failed."""
        self.search.on_trial_complete(self._drawn[number], dict(last) if last else None, error=last is None)
