"""State of a run at one moment, as plain data: progress, speed, ranks and findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.doctor import Finding
from orchestrator.doctor.rank_status import RankStatus


@dataclass(frozen=True)
class RunProgress:
    """Progress of training; None for unknown values."""

    phase: str | None = None
    epoch: int | None = None
    """Current epoch, numbered from 0."""
    step: int = 0
    iteration: int = 0
    """Completed training iterations."""
    epochs: int | None = None
    """Length of the run in epochs, if it was set in epochs."""
    steps: int | None = None
    """Length of the run in steps, if it was set in steps."""
    share: float | None = None
    """Completed fraction of training, from 0 to 1."""
    attempt_share: float | None = None
    """Fraction of training that the current attempt has completed."""
    eta_s: float | None = None
    """Seconds to the end of training at the mean speed."""


@dataclass(frozen=True)
class Speed:
    """Loss and speed over the last iterations; None if not recorded."""

    loss: float | None = None
    """Mean across all ranks."""
    step_s: float | None = None
    """Median time of an iteration."""
    samples_per_s: float | None = None
    """Samples of all ranks together, by the slowest rank's time."""


@dataclass(frozen=True)
class RankView:
    """State of a rank at one moment; None for values that it did not record."""

    rank: int
    node: str
    iteration: int
    """Completed training iterations."""
    row_age_s: float | None = None
    """Seconds since its last row."""
    timing: RankStatus | None = None
    """Work and waiting over the last iterations, compared with the other ranks."""
    rss_bytes: float | None = None
    peaks: Mapping[str, float | None] = field(default_factory=dict)
    """Largest value of each `_bytes` column over the last iterations."""


@dataclass(frozen=True)
class RunView:
    """State of a run at one moment, as plain data; None for unknown values."""

    name: str
    path: str
    status: str
    started: str | None
    ended: str | None
    error: str | None
    stopped: Sequence[str]
    """Reasons why it ended early."""
    progress: RunProgress
    speed: Speed
    reports: int
    report: Mapping[str, Any]
    """The last report."""
    attempts: int
    resumed_from: str | None
    """Checkpoint from which the current attempt resumed."""
    row_age_s: float | None
    """Seconds since the last row of any rank."""
    ranks: Sequence[RankView]
    findings: Sequence[Finding]
    """Findings in the last iterations."""
    notice: str | None = None
    """Message if the run is dead or hangs."""
