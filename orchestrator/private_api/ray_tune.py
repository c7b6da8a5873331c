"""Ray Tune: its loop over trials, the counters of a trial, and its progress callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayActorError
from ray.tune import Trainable, tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback as TrialProgressCallback


def count_from(trainable: Trainable, steps: int, seconds: float) -> None:
    """Make a trial's next result count from earlier steps and their time. In the trial's process."""
    trainable._iteration, trainable._time_total = steps, seconds


def ask_before_next_step(controller: Any, trial: Trial, method: str, *arguments: Any) -> None:
    """Call a method in the process of a trial that has just reported. `controller` is a scheduler's argument."""
    controller._tune_controller._schedule_trial_task(trial, method, args=arguments)


class Controller(TuneController):
    """Tune's controller, which forgets trials that have ended and survives the death of a reused process.

    Ended trials are in their folders, from which a sweep is also resumed.

    If a process dies when Tune gives it the next trial, Tune gets two failures, the actor's and the reset's. The first
    restarts the trial; the second would end it for good, since it is not running (ray.tune 2.60,
    `_process_trial_failure`).
    """

    def on_step_end(self) -> None:
        """Forget the trials that have ended and released their process."""
        super().on_step_end()
        over = {trial for trial in self._stopped_trials | self._failed_trials if trial not in self._trial_to_actor}
        if not over:
            return
        trials = self.get_trials()
        trials[:] = [trial for trial in trials if trial not in over]
        for kept in (self._stopped_trials, self._failed_trials, self._live_trials):
            kept -= over

    def _mark_trial_to_checkpoint(self, trial: Trial) -> None:
        """Do nothing: Tune would keep a record of each trial."""

    def _schedule_trial_task(
        self, trial: Trial, method_name: str, *, on_error: Callable[[Trial, Exception], None] | None = None, **how: Any
    ) -> Any:
        on_error = self._reset_failed if method_name == "reset" else on_error
        return super()._schedule_trial_task(trial, method_name, on_error=on_error, **how)

    def _reset_failed(self, trial: Trial, exception: Exception) -> None:
        self._resetting_trials.discard(trial)
        if isinstance(exception, RayActorError):
            return
        # As Tune does for an actor that fails to start: only a running trial is restarted.
        self._set_trial_status(trial, Trial.RUNNING)
        self._unstage_trial_with_resources(trial)
        self._trial_task_failure(trial, exception)


@contextmanager
def forgetting_trials() -> Iterator[None]:
    """Let Tune use this controller."""
    tunes_own, tune.TuneController = tune.TuneController, Controller
    try:
        yield
    finally:
        tune.TuneController = tunes_own
