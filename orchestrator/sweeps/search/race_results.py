"""The results of a race so far, by configuration and seed."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from orchestrator.experiment.sections.sweep import SweepSettings


class RaceResults:
    """The best value of each trial, by the sweep's first metric, and which trials have ended or
    failed.

    A trial's number is that of its configuration times the number of seeds, plus that of its seed.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self._n_seeds = settings.repeat_count
        self._metric, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._best: dict[int, float] = {}
        """Best value of each trial; higher is better."""
        self._succeeded: set[int] = set()
        self._failed: set[int] = set()

    @property
    def over(self) -> set[int]:
        """The trials that have ended or failed."""
        return self._succeeded | self._failed

    def add_report(self, trial: int, report: Mapping[str, Any]) -> None:
        value = self._sign * report[self._metric]
        if math.isfinite(value):
            self._best[trial] = max(value, self._best.get(trial, value))

    def add_end(self, trial: int, *, failed: bool) -> None:
        """Add the end of a trial, which has failed too if it reported no finite value."""
        if failed or trial not in self._best:
            self._failed.add(trial)
        else:
            self._succeeded.add(trial)

    def list_trials(self, configuration: int) -> range:
        first = configuration * self._n_seeds
        return range(first, first + self._n_seeds)

    def select_least_failed(self, configurations: Iterable[int]) -> list[int]:
        """Return those of the configurations that have the fewest failed trials."""
        n_failed = {
            configuration: len(self._failed.intersection(self.list_trials(configuration)))
            for configuration in configurations
        }
        fewest = min(n_failed.values())
        return [configuration for configuration, count in n_failed.items() if count == fewest]

    def get_results(self, configuration: int) -> dict[int, float]:
        """Return the result of each seed whose trial has ended."""
        return {
            seed: self._best[trial]
            for seed, trial in enumerate(self.list_trials(configuration))
            if trial in self._succeeded
        }

    def compute_mean(self, configuration: int) -> float:
        """Return the mean of the seeds whose trials have ended; -inf if there are none."""
        results = self.get_results(configuration)
        return fmean(results.values()) if results else -math.inf
