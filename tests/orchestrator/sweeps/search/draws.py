from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.sweeps.search.optuna_trials import OptunaTrials
from orchestrator.sweeps.search.search import DrawnTrials
from orchestrator.tables.trial_record import TrialRecord


def previous_trial(
    values: Mapping[str, Any], status: str, reports: Sequence[Mapping[str, Any]] = (), **others: Any
) -> TrialRecord:
    """Make the record of a trial of an earlier attempt, with reports that have the same metrics."""
    compared = {
        name: [report[name] for report in reports] for name in (reports[0] if reports else ())
    }
    known = {"values": values, "status": status, "compared": compared, **others}
    return TrialRecord(**{**dict.fromkeys(field.name for field in fields(TrialRecord)), **known})


class Draws:
    """The trials of a sweep one after the other; the search learns what earlier trials reached."""

    def __init__(
        self, settings: SweepSettings, seed: int, previous: Mapping[int, TrialRecord] | None = None
    ) -> None:
        shared = SharedPaths(
            tuple(path for path, domain in settings.space.items() if domain.kind == "fan_out")
        )
        self.search: Any
        if isinstance(settings.search, OptunaSearch):
            self.search = OptunaTrials(settings, settings.search, seed, previous or {}, shared)
        else:
            self.search = DrawnTrials(settings, seed, previous or {}, shared)

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
