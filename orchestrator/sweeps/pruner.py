"""Early ends of single trials by `asha` or `median`. Used in the driver; does not need Ray."""

from collections.abc import Mapping
from typing import Any

from orchestrator.experiment.sections.schedulers.asha import Asha, AshaRule
from orchestrator.experiment.sections.schedulers.median import Median, MedianRule
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.scores import Scores
from orchestrator.tables.trial_record import TrialRecord


class Pruner:
    """Decides at each report whether a trial stops early, by the sweep's first metric."""

    @classmethod
    def make(cls, settings: SweepSettings, previous: Mapping[int, TrialRecord]) -> "Pruner | None":
        """Return the pruner of a sweep; None if its scheduler stops no single trials.

        Args:
            settings: The sweep.
            previous: Trials of earlier attempts by number, whose reports it learns.
        """
        scheduler = settings.scheduler
        if isinstance(scheduler, Asha):
            return cls(AshaRule(scheduler, settings.seed), settings, previous)
        if isinstance(scheduler, Median):
            return cls(MedianRule(scheduler), settings, previous)
        return None

    def __init__(
        self,
        rule: AshaRule | MedianRule,
        settings: SweepSettings,
        previous: Mapping[int, TrialRecord],
    ) -> None:
        self._rule = rule
        self._metric, _ = settings.objectives[0]
        self._scores = Scores(settings)
        self._undecided: dict[int, tuple[int, Mapping[str, Any]]] = {}
        """Last report of each trial that a resume continues. Most trials repeat it."""
        for number, record in previous.items():
            self._replay(number, record)

    def should_stop(self, number: int, count: int, report: Mapping[str, Any]) -> bool:
        """Return whether a trial stops at a report, its `count`-th with the sweep's metrics."""
        if number in self._undecided:
            last_count, last = self._undecided.pop(number)
            if last_count < count:
                self._decide(number, last_count, last)
        return self._decide(number, count, report)

    def _replay(self, number: int, record: TrialRecord) -> None:
        reports = list(enumerate(record.compared_reports, 1))
        if reports and not record.has_ended:
            self._undecided[number] = reports.pop()
        for count, report in reports:
            self._decide(number, count, report)

    def _decide(self, number: int, count: int, report: Mapping[str, Any]) -> bool:
        score = self._scores.add(number, count, report[self._metric])
        return self._rule.should_stop(number, count, score)
