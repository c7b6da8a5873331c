"""Scores of trials, by which schedulers compare them."""

import math
from collections import defaultdict

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.tables.configurations import compute_score

_WORST = 1e300
"""Magnitude of a score that is not finite. Schedulers interpolate between scores, so an infinite
one would give NaN."""


class Scores:
    """Results of a sweep's trials; with `repeats` those of their configurations. Higher is
    better."""

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings
        _, self._mode = settings.objectives[0]
        self._results: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        """Results of the trials of each configuration with as many reports."""

    def add(self, trial: int, report: int, result: float) -> float:
        """Add the result of a trial's report, and return its score.

        With `repeats` the score is the aggregate over those trials of the configuration that have
        as many reports. The result of a repeated report replaces the earlier one.
        """
        results = {trial: result}
        if self._settings.repeat_count > 1:
            results = self._results[trial // self._settings.repeat_count, report]
            results[trial] = result

        score = compute_score([*results.values()], self._mode, self._settings.aggregate)
        if not math.isfinite(score):
            return -_WORST
        return score if self._mode == "max" else -score
