"""`scheduler: race`: compares configurations seed by seed, and eliminates unlikely winners. Does
not need Ray.

All configurations train with the first seed to the end, because curves may cross. Then the
configuration with the best mean trains with its other seeds, and the others follow seed by seed,
better ones first. A configuration is eliminated when its mean over all seeds is too unlikely to
exceed the mean of the best one.

"Too unlikely" is a probability of at most level / (C - 1), for C configurations, so that the true
winner is eliminated with a probability of at most `level` if the differences between seeds are
normally distributed.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.sweeps.search.drawing import draw_trials
from orchestrator.sweeps.search.race_results import RaceResults
from orchestrator.sweeps.search.search import (
    Search,
    TrialConfig,
    list_remaining_trials,
    make_trial_config,
)
from orchestrator.sweeps.search.win_probability import compute_win_probabilities
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count


class RacingTrials(Search):
    """Search that chooses the next trial, and stops the trials of eliminated configurations.

    A configuration with more failed trials than another one cannot win.
    """

    def __init__(
        self,
        settings: SweepSettings,
        seed: int,
        previous: Mapping[int, TrialRecord],
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(settings)
        assert isinstance(settings.scheduler, Race)
        self._n_seeds = settings.repeat_count
        self._n_configurations = count_trials(settings) // self._n_seeds
        self._level = settings.scheduler.level / max(1, self._n_configurations - 1)
        self._show_line = show_line
        self._values = dict(enumerate(draw_trials(settings, seed)))
        self._values |= {number: dict(trial.values) for number, trial in previous.items()}
        self.count = len(list_remaining_trials(settings, previous))
        self.eliminated: dict[int, str] = {}
        """Reason for the elimination, by configuration."""
        self._results = RaceResults(settings)
        self._started: set[int] = set()
        self._paused: set[int] = set()
        self._replay(previous)
        self._interrupted = deque(self._list_interrupted(previous))

    def _replay(self, previous: Mapping[int, TrialRecord]) -> None:
        # In the order of their ends, because an eliminated configuration stays eliminated.
        for number, trial in sorted(previous.items(), key=lambda entry: entry[1].ended or ""):
            for report in trial.compared_reports:
                self._results.add_report(number, report)
            if trial.has_ended:
                self._started.add(number)
                self._end(number, failed=trial.status == "failed")

    def _list_interrupted(self, previous: Mapping[int, TrialRecord]) -> list[int]:
        """Return the trials to continue. A failed one runs again only if its configuration can
        still win."""
        numbers = []
        for number, trial in sorted(previous.items()):
            is_lost = trial.error and number // self._n_seeds in self.eliminated
            if not trial.has_ended and not is_lost:
                numbers.append(number)
        return numbers

    def suggest(self) -> TrialConfig | None:
        number = self._interrupted.popleft() if self._interrupted else self._choose_next()
        if number is None:
            return None
        self._started.add(number)
        return make_trial_config(number, self._values[number])

    @property
    def is_finished(self) -> bool:
        return not self._list_running()

    def record_report(self, number: int, report: Mapping[str, Any]) -> str | None:
        self._results.add_report(number, report)
        return self.eliminated.get(number // self._n_seeds)

    def record_end(
        self, number: int, last: Mapping[str, Any] | None, excesses: Sequence[float] = ()
    ) -> None:
        self._end(number, failed=last is None)

    def record_pause(self, number: int) -> None:
        self._paused.add(number)

    def _end(self, number: int, *, failed: bool) -> None:
        self._results.add_end(number, failed=failed)
        self._eliminate()

    def _choose_next(self) -> int | None:
        """Return the next trial: the first seed of each configuration, then all of the best one,
        then the rest. None while the first seeds train, and once no trial is left."""
        contenders = self._list_contenders()
        waiting: list[int] = []
        for configuration in contenders:
            not_started = {*self._results.list_trials(configuration)} - self._started
            if not_started:
                waiting.append(min(not_started))

        first_seeds = [number for number in waiting if self._is_first_seed(number)]
        if first_seeds:
            return min(first_seeds)
        running = [number for number in self._list_running() if self._is_first_seed(number)]
        if any(number // self._n_seeds in contenders for number in running):
            return None

        best = max(contenders, key=self._results.compute_mean)

        def sort_key(number: int) -> tuple[bool, int, float]:
            configuration, seed = divmod(number, self._n_seeds)
            return configuration != best, seed, -self._results.compute_mean(configuration)

        return min(waiting, key=sort_key, default=None)

    def _is_first_seed(self, number: int) -> bool:
        return number % self._n_seeds == 0

    def _list_running(self) -> set[int]:
        return self._started - self._results.over - self._paused

    def _list_contenders(self) -> list[int]:
        """Return the configurations that can win."""
        remaining = [
            number for number in range(self._n_configurations) if number not in self.eliminated
        ]
        return self._results.select_least_failed(remaining)

    def _eliminate(self) -> None:
        """Eliminate the configurations that are too unlikely to win, unless all their seeds have
        ended."""
        results = {}
        for configuration in self._list_contenders():
            ended = self._results.get_results(configuration)
            if ended:
                results[configuration] = ended
        if not results:
            return

        best = max(results, key=self._results.compute_mean)
        probabilities = compute_win_probabilities(results, best, self._n_seeds)
        for other, probability in probabilities.items():
            seeds = len(results[other])
            if seeds < self._n_seeds and probability <= self._level:
                gap = self._results.compute_mean(best) - self._results.compute_mean(other)
                self.eliminated[other] = (
                    f"configuration {other} eliminated: {gap:.4g} behind configuration {best} over"
                    f" {format_count(seeds, 'seed')}; probability of overtaking it:"
                    f" {probability:.2g}"
                )
                self._show_line(self.eliminated[other])
