"""The config and the results of a trial, as Ray Tune passes them between it and the driver."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.sweeps.search.search import make_trial_config

TRIAL = "trial"
"""Key of a config: a `TrialConfig`."""
SCORE = "score"
"""Key of a result: the value of the sweep's first metric. Tune's schedulers compare trials by it."""
_CONTENT = "content"
"""Key of a result: the `TrialResult`. Under a key of its own, no metric can have the name of one of
Tune's entries."""


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
    """A message of a trial's process to the driver, through Tune."""

    report: TrialReport | None
    """The last report, also if an earlier result has had it; None if there has been none."""
    reported: int | None
    """Number of the trial whose report it is; None if it is not new."""
    failed: Sequence[int] = ()
    """Numbers of the trials that have failed since the last result, while the others of their
    training run continue."""
    is_last: bool = False
    """Whether no trial of the training run trains after this result."""

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Self:
        """Return what a result of Tune holds."""
        content: Self = result[_CONTENT]
        return content

    @property
    def new_report(self) -> tuple[int, TrialReport] | None:
        """The number of the trial that has reported, and its report; None if there is none that is
        new."""
        if self.reported is None or self.report is None:
            return None
        return self.reported, self.report

    def make_tune_result(self, metric: str) -> dict[str, Any]:
        """Return the result for Tune, which refuses one without a score.

        Args:
            metric: Name of the sweep's first metric.
        """
        own = {_CONTENT: self, DONE: self.is_last}
        if self.report is None:
            # Tune counts this result itself.
            return {SCORE: math.nan, **own}
        return {SCORE: self.report.metrics[metric], TRAINING_ITERATION: self.report.count, **own}
