"""State of a sweep and its trials at one moment, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.disk.statuses import FAILED
from orchestrator.tables.configurations import Configuration
from orchestrator.terminal.run_view import RunView

UNFINISHED = ("interrupted", "lost")
"""Statuses of trials that a resume of the sweep continues."""


@dataclass(frozen=True)
class TrialView:
    """State of a trial at one moment."""

    name: str
    status: str
    values: Mapping[str, Any]
    """Swept values by dotted path."""
    best: float | None
    """The sweep's metric in the trial's best report."""
    last: float | None
    """The sweep's metric in the trial's last report."""
    started: str
    ended: str | None
    stopped: Sequence[str]
    error: str | None
    run: RunView | None = None
    """State of a running trial."""
    configuration: int | None = None
    """Number of its configuration."""
    attempt_share: float = 1.0
    """Share of its training that its last attempt did."""
    infeasible: str | None = None
    """Which of the sweep's constraints an ended trial breaks."""

    @property
    def share(self) -> float:
        """Completed share of its training; 0 for a trial that only a resume continues."""
        if self.status == "running" and self.run:
            return self.run.progress.share or 0.0
        return 0.0 if self.status in UNFINISHED else 1.0

    def compute_share_since(self, start: str) -> float:
        """Return the share of its training that was done since the last start of the sweep."""
        if self.ended is not None and self.ended < start:
            return 0.0
        if self.started < start and self.status not in UNFINISHED:
            return self.attempt_share
        return self.share


@dataclass(frozen=True)
class SweepView:
    """State of a sweep at one moment."""

    name: str
    path: str
    status: str
    error: str | None
    metric: str
    mode: str
    total: int
    """Number of trials of the complete sweep."""
    counts: Mapping[str, int]
    """Number of trials by status."""
    best: str | None
    """Trial with the best report; with repeats, the best trial of the best configuration."""
    share: float
    """Completed share of all trials, from 0 to 1."""
    eta_s: float | None
    """Seconds to the end of a running sweep at the current speed."""
    trials: Sequence[TrialView]
    """Started trials: first running ones, then ended ones (best first), then failed ones."""
    notice: str | None = None
    """Message if the sweep is dead."""
    configuration: Configuration | None = None
    """Best configuration of a sweep with repeats."""

    @property
    def ended(self) -> int:
        """Number of trials that will not continue."""
        continuing = ("running", *UNFINISHED)
        return sum(count for status, count in self.counts.items() if status not in continuing)

    @property
    def failed(self) -> int:
        """Number of trials that failed, were lost or cannot be read."""
        return sum(self.counts.get(status, 0) for status in FAILED)
