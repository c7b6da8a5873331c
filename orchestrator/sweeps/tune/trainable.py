"""A trial of a sweep, or trials that share a training run, run by Ray Tune on an engine."""

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.removal import is_within
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import find_checkpoint_to_exploit, trial_folder
from orchestrator.engines.failure_record import is_user_error
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.engines.trial_gang import TrialGang
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState, begin_trials, list_training
from orchestrator.sweeps.after_failure import AfterFailure, decide_after_failure
from orchestrator.sweeps.search.search import TrialConfig, list_members
from orchestrator.sweeps.training_attempt import (
    TrainingAttempt,
    TrialEvent,
    TrialFailed,
    TrialReported,
)
from orchestrator.sweeps.tune.trial_data import TRIAL
from orchestrator.sweeps.tune.trial_results import TrialResults

ENGINES: Mapping[str, type[TrialGang] | type[TrainJobs]] = {"gang": TrialGang, "train": TrainJobs}
"""Engines by name. `bundles` are the resources that Tune reserves for a trial, its own process
first."""
_POINTER = "checkpoint.json"


class Trial(tune.Trainable):
    """A trial of a sweep. With actor reuse the same process and engine run the next one.

    A step trains to the next report with the sweep's metrics. A trial is a run in the sweep's
    folder. It begins with the first step, so that Tune can restore a checkpoint before. A
    checkpoint for Tune is a pointer to one in a trial's folder. If Tune ends a trial, the driver
    records the end.

    After the loss of this process or of a rank, Tune restarts the trial from its newest checkpoint
    on a new engine.

    Trials that share a training run are one trial for Tune, whose results name the trial that
    reported. The driver calls `stop_early` to stop a single one.
    """

    def setup(
        self,
        config: dict[str, Any],
        source: ExperimentSource,
        settings: SweepSettings,
        workers: Workers,
        location: str,
    ) -> None:
        """Start the engine. `source`, `settings`, `workers` and `location` are the sweep's.

        SIGTERM ends this process at once: its node shuts down. Ray would raise SystemExit in the
        line of user code that runs, which then looks like a failure of that code.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._source = source
        self._settings = settings
        self._location = location
        self._engine = ENGINES[settings.engine](workers)
        self._set_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leave this trial for the next one, on the same engine."""
        self._shut_down()
        self._set_config(new_config)
        return True

    def _set_config(self, config: dict[str, Any]) -> None:
        self._config: TrialConfig = config[TRIAL]
        self._shares_training = bool(self._config["followers"])
        self._results = TrialResults(self._settings, shares_training=self._shares_training)
        self._checkpoint: str | None = None
        """Checkpoint that Tune has restored, of this trial or of another."""
        self._count_offset: int | None = 0
        """How many reports Tune counts more than the trial has made, which may be negative. It
        counts from another trial's after an exploit; None until the first report after one."""
        self._trials: list[ActiveTrial] = []
        """The trials that have begun; none before the first step."""
        self._attempt: TrainingAttempt | None = None
        """The attempt that trains them; None before the first step, and after the last."""
        self._events: Iterator[TrialEvent] | None = None
        """What happens to them; None before the first step, and after the last."""

    def step(self) -> dict[str, Any]:
        """Train to the next report with the sweep's metrics."""
        if self._events is None:
            self._trials = self._begin_trials()
            self._events = self._train()
        for event in self._events:
            match event:
                case TrialReported():
                    self._keep_report(event.trial)
                    if self._shares_training or event.trial.state is TrialState.TRAINING:
                        return self._results.make_result(event.trial.number)
                case TrialFailed():
                    self._handle_failure(event)

        self._shut_down()
        if not self._results.metrics:
            self._keep_earlier_report()
        return self._results.make_last_result()

    def _begin_trials(self) -> list[ActiveTrial]:
        members = list_members(self._config)
        if self._shares_training:
            # Some may have ended before the others lost their process.
            members = [member for member in members if not self._is_complete(member["number"])]
        begun = begin_trials(members, self._location, self._source, self._settings)
        for member, _ in begun.refused:
            self._results.keep_failure(member["number"])
        if not begun.trials:
            raise PermanentFailure("no trial of this training run is left to train")
        return begun.trials

    def _is_complete(self, number: int) -> bool:
        folder = trial_folder(self._location, number)
        return folder.exists() and folder.read_metadata().is_complete

    def _train(self) -> Iterator[TrialEvent]:
        """Train the trials until each has ended, and yield what happens to them. After a failure,
        the others continue in another attempt."""
        checkpoint = self._find_checkpoint_to_exploit(self._trials[0].folder)
        while continuing := list_training(self._trials):
            attempt = TrainingAttempt(self._engine, continuing, self._settings, checkpoint)
            self._attempt = attempt
            yield from attempt.train()

    def _find_checkpoint_to_exploit(self, folder: RunFolder) -> str | None:
        """Return the checkpoint of another trial to continue from; None for the trial's own. Tune
        may have restored either, and its own may be the newest or an older one."""
        assigned = self._checkpoint
        if assigned is not None and is_within(assigned, find_checkpoint_folder(folder)):
            assigned = None
        if assigned is not None:
            self._count_offset = None
        return find_checkpoint_to_exploit(folder, assigned)

    def _handle_failure(self, failed: TrialFailed) -> None:
        """Let the others continue without the failed trial if they can. Otherwise fail them too and
        raise the failure: Tune starts them again, unless it is permanent."""
        others = [trial for trial in self._trials if trial is not failed.trial]
        after = decide_after_failure(failed.error, others, restarts=True)
        if after is AfterFailure.CONTINUE_WITHOUT:
            self._results.keep_failure(failed.trial.number)
            return

        self._shut_down()
        for trial in list_training(others):
            trial.record_failure(failed.error)
        if is_user_error(failed.error):
            raise PermanentFailure(str(failed.failure)) from failed.failure
        raise failed.failure

    def _keep_report(self, trial: ActiveTrial) -> None:
        own_count = len(trial.reports)
        if self._count_offset is None:
            self._count_offset = self.iteration + 1 - own_count
        self._results.keep_report(trial, count=own_count + self._count_offset)

    def _keep_earlier_report(self) -> None:
        """Keep a report of an earlier attempt, after which a trial was interrupted and made no
        other report."""
        for trial in self._trials:
            if trial.reports:
                self._keep_report(trial)
                return

    def stop_early(self, number: int, reason: str) -> None:
        """Stop one of the trials that share this training run, as the driver decided at its
        report."""
        if self._attempt is None:
            return
        for trial in self._attempt.trials:
            if trial.number == number:
                self._attempt.stop(trial, reason)

    def _shut_down(self) -> None:
        """Stop training. The driver records the ends of trials that have not come to theirs."""
        if self._attempt:
            self._attempt.close()
        self._attempt = None
        self._events = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of all ranks into the trial's folder, and its path into Tune's."""
        path = self._attempt.save() if self._attempt else self._checkpoint
        pointer = {
            "checkpoint": path,
            "metrics": self._results.metrics,
            "count_offset": self._count_offset,
        }
        Path(checkpoint_dir, _POINTER).write_text(format_json(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from what `save_checkpoint` wrote for this or another trial."""
        pointer = parse_json(Path(checkpoint_dir, _POINTER).read_bytes())
        self._shut_down()
        self._checkpoint = pointer["checkpoint"]
        self._count_offset = pointer["count_offset"]
        self._results.metrics = pointer["metrics"]

    def cleanup(self) -> None:
        self._shut_down()
