from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.checks.shared_training import SharedPaths
from orchestrator.config.sections.sweep import Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.search import DrawnTrials, OptunaTrials


class Draws:
    """The trials of a sweep one after the other; the search learns what earlier trials reached."""

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial] | None = None) -> None:
        shared = SharedPaths(tuple(path for path, domain in settings.space.items() if domain.kind == "fan_out"))
        kind: Any = OptunaTrials if settings.search == "optuna" else DrawnTrials
        self.search = kind(settings, seed, previous or {}, shared)

    def group_trials(self) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """Number and values of the trials that share each training."""
        for _ in range(self.search.count):
            trial = self.search.suggest()
            yield [(member["number"], member["values"]) for member in (trial, *trial["followers"])]
        assert self.search.is_finished

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return (trial for (trial,) in self.group_trials())

    def over(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Tell the search how a trial ended: its last report, or None if it failed."""
        self.search.record_end(number, last)
