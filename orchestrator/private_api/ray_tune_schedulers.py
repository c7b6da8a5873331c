"""Ray Tune's schedulers, and calls in the process of a trial that they stop."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining


def call_before_next_step(controller: Any, trial: Trial, method: str, *arguments: Any) -> None:
    """Call a method in the process of a trial that has just reported. `controller` is a scheduler's
    argument."""
    controller._tune_controller._schedule_trial_task(trial, method, args=arguments)


class Bands(HyperBandScheduler):
    """HyperBand whose trials all end with their bracket."""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Stop the trials of finished brackets, and return the trial to run.

        At a bracket's last report, Tune misses a trial whose pause is still being saved; it would
        be paused forever.
        """
        for bracket in itertools.chain.from_iterable(self._hyperbands):
            if bracket and bracket.finished():
                bracket.cleanup_full(tune_controller)
        return super().choose_trial_to_run(tune_controller)


class Exploiting(PopulationBasedTraining):
    """Population-based training whose subclass chooses the config of an exploiting trial."""

    def compare_first_after(self, reports: int, burn_in: int) -> None:
        """Set the first comparison: after `burn_in`, and after the reports before a resume."""
        due = (reports // self._perturbation_interval + 1) * self._perturbation_interval
        self._next_perturbation_sync: int = max(burn_in, due)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Have the trial wait for the next comparison, also if it was resumed or restarted behind
        the others."""
        super().on_trial_add(tune_controller, trial)
        self._trial_state[trial].last_perturbation_time = (
            self._next_perturbation_sync - self._perturbation_interval
        )

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial to run. Compare the population first if the trial that the others waited
        for has ended.

        Tune compares only at a report, and would wait forever.
        """
        chosen: Trial | None = super().choose_trial_to_run(tune_controller)
        waiting = [*tune_controller.get_live_trials()]
        if chosen or not waiting or any(trial.status != Trial.PAUSED for trial in waiting):
            return chosen
        super().on_trial_result(
            tune_controller, waiting[0], self._trial_state[waiting[0]].last_result
        )
        return super().choose_trial_to_run(tune_controller)

    def next_config(self, trial: Trial, source: Trial) -> dict[str, Any]:
        """Return the config with which a trial continues from another trial's checkpoint."""
        raise NotImplementedError

    def record_exploit(
        self,
        trial: Trial,
        source: Trial,
        result: Mapping[str, Any],
        score: float,
        source_score: float,
    ) -> None:
        """Record an exploit; `result` is the source's last result, and the scores have the metric's
        own sign."""
        raise NotImplementedError

    def _save_trial_state(self, state: Any, *arguments: Any) -> Any:
        returned = super()._save_trial_state(state, *arguments)
        if math.isnan(state.last_score):  # the worst; Tune would leave such a trial alone
            state.last_score = -math.inf
        return returned

    def _get_new_config(
        self, trial: Trial, trial_to_clone: Trial
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.next_config(trial, trial_to_clone), {}

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        own = self._trial_state[trial]
        source = self._trial_state[trial_to_clone]
        score = own.last_result[self._metric]
        source_score = source.last_result[self._metric]
        super()._exploit(tune_controller, trial, trial_to_clone)
        self.record_exploit(trial, trial_to_clone, source.last_result, score, source_score)
