"""The end of a sweep before its trials have ended. Used in the driver; does not need Ray."""

from collections.abc import Callable

from orchestrator.disk.statuses import Status
from orchestrator.sweeps.budget import BudgetUse


class SweepEnd:
    """Decision whether a sweep ends early: its budget is used up, `stop_requested` returns True, a
    trial failed with `fail_fast`, or no trial reports the sweep's metric."""

    def __init__(
        self, budget: BudgetUse, stop_requested: Callable[[], bool], *, fail_fast: bool = False
    ) -> None:
        self.budget = budget
        self.stop_requested = stop_requested
        self._fail_fast = fail_fast
        self._failed_trial: str | None = None
        self.metric_missing: str | None = None
        """Error of a trial whose reports lack the sweep's metric, if no other trial has reported
        it."""
        self.outcome: tuple[Status, str] | None = None
        """Status of the trials that the end stops, and the reason; None until the end is due."""

    def add_failure(self, trial: str) -> None:
        """End the sweep because of a failed trial with `fail_fast`, or if it ends for a missing
        metric."""
        if self._fail_fast or self.metric_missing:
            self._failed_trial = trial

    def add_missing_metric(self, trial: str, error: str) -> None:
        """End the sweep because a trial failed whose reports lack the sweep's metric."""
        self._failed_trial = trial
        self.metric_missing = error

    def is_due(self) -> bool:
        """Return whether no trial may begin or continue. Once it is due it stays due."""
        if self.outcome is None:
            self.outcome = self._find_outcome()
        return self.outcome is not None

    def _find_outcome(self) -> tuple[Status, str] | None:
        reason = self.budget.explain_end()
        if reason:
            return "stopped", reason
        if self._failed_trial:
            return "interrupted", f"{self._failed_trial} failed, which ends the sweep"
        if self.stop_requested():
            return "interrupted", "interrupted"
        return None
