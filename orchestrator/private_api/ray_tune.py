"""Of Ray Tune: its loop over the trials, the counts of a trial, and who shows progress. Driver, and `count_from` in a
trial's process."""

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
    """Has a trial's next result count on from earlier steps, and from the time that these took."""
    trainable._iteration, trainable._time_total = steps, seconds


def ask_before_next_step(controller: Any, trial: Trial, method: str, *arguments: Any) -> None:
    """Has the process of a trial that has just reported call a method of it; `controller` is what a scheduler is
    given."""
    controller._tune_controller._schedule_trial_task(trial, method, args=arguments)


class Controller(TuneController):
    """Tune's own, but for trials that are over and for a process that dies between two trials.

    What a trial has left lies in its folder, from which a sweep also goes on: nothing more is kept of it here. A
    scheduler may still hold it.

    Tune hands the next trial to the process and hears of its death twice, as the actor's and as the reset's. The first
    starts the trial anew; the second, as the trial is not running, ends it for good (ray.tune 2.60,
    `_process_trial_failure`), and the trial counts as being reset for ever.
    """

    def on_step_end(self) -> None:
        """Forgets the trials that are over, and whose process has been let go."""
        super().on_step_end()
        over = {trial for trial in self._stopped_trials | self._failed_trials if trial not in self._trial_to_actor}
        if not over:
            return
        trials = self.get_trials()
        trials[:] = [trial for trial in trials if trial not in over]
        for kept in (self._stopped_trials, self._failed_trials, self._live_trials):
            kept -= over

    def _mark_trial_to_checkpoint(self, trial: Trial) -> None:
        """Nothing: Tune would note down what a trial is, and keep the note."""

    def _schedule_trial_task(
        self, trial: Trial, method_name: str, *, on_error: Callable[[Trial, Exception], None] | None = None, **how: Any
    ) -> Any:
        on_error = self._reset_failed if method_name == "reset" else on_error
        return super()._schedule_trial_task(trial, method_name, on_error=on_error, **how)

    def _reset_failed(self, trial: Trial, exception: Exception) -> None:
        self._resetting_trials.discard(trial)
        if isinstance(exception, RayActorError):
            return
        # As Tune does for an actor that fails to start: only a running trial is started anew.
        self._set_trial_status(trial, Trial.RUNNING)
        self._unstage_trial_with_resources(trial)
        self._trial_task_failure(trial, exception)


@contextmanager
def forgetting_trials() -> Iterator[None]:
    """Within it Tune runs its trials with this controller."""
    tunes_own, tune.TuneController = tune.TuneController, Controller
    try:
        yield
    finally:
        tune.TuneController = tunes_own
