"""Ray Tune's schedulers: replay of earlier results, and exploiting in populations. Driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule


class Halving(ASHAScheduler):
    """ASHA that can replay earlier results."""

    def replay_results(self, trial: Any, results: list[dict[str, Any]]) -> None:
        """Add a trial's results to their rungs."""
        if trial.trial_id not in self._trial_info:
            self._trial_info[trial.trial_id] = self._brackets[0]
        for result in results:
            self.on_trial_result(None, trial, result)


class Bands(HyperBandScheduler):
    """HyperBand whose trials all end with their bracket."""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Stop the trials of finished brackets, and return the trial to run.

        Tune stops them at the bracket's last report, but misses a trial whose pause is still being saved: it
        would pause for ever.
        """
        for bracket in (bracket for band in self._hyperbands for bracket in band if bracket and bracket.finished()):
            bracket.cleanup_full(tune_controller)
        return super().choose_trial_to_run(tune_controller)


class Median(MedianStoppingRule):
    """Median rule that can replay earlier results."""

    def replay_results(self, trial: Any, results: list[dict[str, Any]]) -> None:
        """Add a trial's results to those that others are compared with."""
        if results:
            self._results[trial].extend(results)


class Exploiting(FIFOScheduler):
    """Mixin for a population scheduler of Tune, whose subclass chooses the config of an exploiting trial."""

    def next_config(self, trial: Trial, source: Trial, tunes_own: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the config with which a trial continues another's checkpoint."""
        raise NotImplementedError

    def record_exploit(
        self, trial: Trial, source: Trial, result: Mapping[str, Any], score: float, source_score: float
    ) -> None:
        """Record an exploit; `result` is the source's last, and the scores have the metric's own sign."""
        raise NotImplementedError

    def _get_new_config(self, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        tunes_own = super()._get_new_config
        return self.next_config(trial, trial_to_clone, lambda: tunes_own(trial, trial_to_clone)[0]), {}

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        own, source = self._trial_state[trial], self._trial_state[trial_to_clone]
        score, source_score = self._metric_op * own.last_score, self._metric_op * source.last_score
        super()._exploit(tune_controller, trial, trial_to_clone)
        self.record_exploit(trial, trial_to_clone, source.last_result, score, source_score)
