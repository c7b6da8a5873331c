"""Ray Tune: its loop over trials, and the callback that shows their progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayActorError
from ray.tune import tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback as TrialProgressCallback


class PermanentFailure(Exception):
    """Failure of a trial that a retry would repeat."""


class Controller(TuneController):
    """Tune's controller, but it drops ended trials from memory, does not retry a trial after a
    PermanentFailure, and survives the death of a reused process.

    The folders hold the ended trials; a resume reads them there.

    If a process dies when Tune assigns it the next trial, Tune gets two failures: of the actor and
    of the reset. The first restarts the trial; the second would end it, because it is not yet
    running (ray.tune 2.60, `_process_trial_failure`).
    """

    def on_step_end(self) -> None:
        super().on_step_end()
        ended = {
            trial
            for trial in self._stopped_trials | self._failed_trials
            if trial not in self._trial_to_actor
        }
        if not ended:
            return
        trials = self.get_trials()
        trials[:] = [trial for trial in trials if trial not in ended]
        for group in (self._stopped_trials, self._failed_trials, self._live_trials):
            group -= ended

    def _mark_trial_to_checkpoint(self, trial: Trial) -> None:
        """Do nothing, because Tune would keep an entry for each trial."""

    def _schedule_trial_task(
        self,
        trial: Trial,
        method_name: str,
        *,
        on_error: Callable[[Trial, Exception], None] | None = None,
        **how: Any,
    ) -> Any:
        on_error = self._reset_failed if method_name == "reset" else on_error
        return super()._schedule_trial_task(trial, method_name, on_error=on_error, **how)

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        if isinstance(exception, PermanentFailure):
            trial.max_failures = 0
        super()._trial_task_failure(trial, exception)

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
    """Make Tune use `Controller` within the block."""
    original = tune.TuneController
    tune.TuneController = Controller
    try:
        yield
    finally:
        tune.TuneController = original
