"""The config and the results of a trial, as Ray Tune passes them between it and the driver."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.sweeps.search.search import make_trial_config

TRIAL = "trial"
"""Key of a config: a `TrialConfig`."""
_REPORTED = "reported"
_FAILED = "failed"
_SECONDS = "seconds"


def make_tune_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {TRIAL: make_trial_config(number, values)}


@dataclass(frozen=True)
class TrialReport:
    """A report of a trial with the sweep's metrics."""

    metrics: Mapping[str, Any]
    """The sweep's metrics, and counters."""
    count: int
    """How many reports Tune counts for the trial, with this one."""
    seconds: float
    """The trial's training time, including earlier attempts."""


@dataclass(frozen=True)
class TrialResult:
    """The content of a result besides its metrics."""

    reported: int | None
    """Number of the trial whose report it is; None if it is no report."""
    count: int
    """As in `TrialReport`."""
    seconds: float
    """As in `TrialReport`."""
    failed: Sequence[int]
    """Numbers of the trials that have failed since the last result, while the others of their
    training run continue."""

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Self:
        """Read a result of `make_tune_result`."""
        return cls(
            reported=result[_REPORTED],
            count=result[TRAINING_ITERATION],
            seconds=result[_SECONDS],
            failed=result[_FAILED],
        )


def make_tune_result(
    report: TrialReport | None,
    required: Sequence[str],
    *,
    reported: int | None,
    failed: Sequence[int],
    is_last: bool,
) -> dict[str, Any]:
    """Make a result, which has the sweep's metrics, because Tune refuses one without.

    Args:
        report: The last report, also if this result only repeats it; None if there has been none,
            and the metrics are NaN.
        required: Names of the sweep's metrics.
        reported: As in `TrialResult`.
        failed: As in `TrialResult`.
        is_last: Whether no trial of the training run trains after this result.
    """
    own = {_REPORTED: reported, _FAILED: [*failed], DONE: is_last}
    if report is None:
        # Tune counts this result itself.
        return {**dict.fromkeys(required, math.nan), _SECONDS: 0.0, **own}
    return {**report.metrics, TRAINING_ITERATION: report.count, _SECONDS: report.seconds, **own}
