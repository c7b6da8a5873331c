"""`scheduler: median`: the median stopping rule (Golovin et al. 2017)."""

from statistics import fmean, median
from typing import Annotated, Literal

from annotated_types import Ge

from orchestrator.experiment.sections.schedulers.base import Scheduler


class Median(Scheduler):
    """Stops a trial whose best value is worse than the median of the other trials' running averages
    at the same report (Golovin et al. 2017). It needs no rungs, so take it where good lengths for them are
    not known."""

    type: Literal["median"] = "median"
    grace_period: Annotated[int, Ge(1)] = 1
    """Reports before a trial may be stopped."""
    min_samples_required: Annotated[int, Ge(1)] = 3
    """Other trials needed for a median."""


class MedianRule:
    """Stops a trial whose best score is below the median of the other trials' running averages."""

    def __init__(self, settings: Median) -> None:
        self._settings = settings
        self._scores: dict[int, list[float]] = {}
        """Score of each report of each trial."""

    def should_stop(self, trial: int, report: int, score: float) -> bool:
        """Return whether a trial stops at a report. A repeated report replaces the later ones.

        Args:
            trial: Number of the trial.
            report: Number of the report, from 1.
            score: Result of the trial; higher is better. It must be finite.
        """
        scores = self._scores.setdefault(trial, [])
        scores[report - 1 :] = [score]

        grace_period = self._settings.grace_period
        if report < grace_period:
            return False

        averages = [
            fmean(others[grace_period - 1 : report])
            for other, others in self._scores.items()
            if other != trial and len(others) >= report
        ]
        if len(averages) < self._settings.min_samples_required:
            return False
        return max(scores) < median(averages)
