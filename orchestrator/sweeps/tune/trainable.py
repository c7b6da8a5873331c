"""A trial of a sweep, or trials that share a training run, run by Ray Tune on an engine."""

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.removal import is_within
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import find_checkpoint_to_exploit, trial_folder
from orchestrator.engines.failure_record import is_user_error
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.engines.trial_gang import TrialGang
from orchestrator.errors import ConfigError, MetricMissing
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.process.streams import print_line
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.sweeps.active_trial import ActiveTrial
from orchestrator.sweeps.search.search import TrialConfig, list_members
from orchestrator.sweeps.trial_group import Failed, Reported, TrialGroup
from orchestrator.sweeps.tune.trial_data import FAILED, REPORTED, SECONDS, TRIAL

ENGINES: Mapping[str, type[TrialGang] | type[TrainJobs]] = {"gang": TrialGang, "train": TrainJobs}
"""Engines by name. `bundles` are the resources that Tune reserves for a trial, its own process
first."""
_POINTER = "checkpoint.json"
_COUNTERS = ("epoch", "step", "samples")
"""Counters that Tune gets besides the sweep's metrics. Tune keeps every result."""


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
        self._group: TrialGroup | None = None
        """The trials that train; None before the first step, and after the last."""
        self._failed: list[int] = []
        """Numbers of the trials that failed alone since the last result."""
        self._metrics: dict[str, Any] = {}
        self._checkpoint: str | None = None
        """Checkpoint that Tune has restored."""

    def step(self) -> dict[str, Any]:
        """Train to the next report with the sweep's metrics."""
        if self._group is None:
            self._group = self._begin()
        group = self._group
        while not group.has_ended:
            trial = self._train(group)
            if trial and trial.last and (self._shares_training or not trial.last.is_final):
                return self._make_result(trial.number)

        self._shut_down()
        if not self._metrics:
            self._keep_earlier_metrics(group)
        return self._make_result(None) if self._metrics else self._make_result_without_report()

    def _begin(self) -> TrialGroup:
        trials = []
        for member in list_members(self._config):
            trial = self._begin_trial(member["number"], member["values"])
            if trial:
                trials.append(trial)
        if not trials:
            raise PermanentFailure("no trial of this training run is left to train")
        folder = trials[0].folder
        checkpoint = find_checkpoint_to_exploit(folder, self._find_assigned_checkpoint(folder))
        return TrialGroup(self._engine, trials, self._settings, checkpoint)

    def _find_assigned_checkpoint(self, folder: RunFolder) -> str | None:
        """Return the checkpoint of another trial that Tune has assigned to this one; None for its
        own, which is the newest or an older one."""
        checkpoint = self._checkpoint
        if checkpoint is None or is_within(checkpoint, find_checkpoint_folder(folder)):
            return None
        return checkpoint

    def _begin_trial(self, number: int, values: Mapping[str, Any]) -> ActiveTrial | None:
        """Begin a trial; return None if the others of a shared training run train without it."""
        folder = trial_folder(self._location, number)
        has_begun = self._shares_training and folder.exists()
        if has_begun and folder.read_metadata().status in COMPLETE:
            return None  # it ended before the others lost their process
        try:
            return ActiveTrial.begin(self._location, number, self._source, self._settings, values)
        except ConfigError as error:
            if self._shares_training:
                self._failed.append(number)
                return None
            raise PermanentFailure(str(error)) from error

    def _train(self, group: TrialGroup) -> ActiveTrial | None:
        """Train until a trial reports, and return it; None if one has failed without which the
        others continue, or if all have ended."""
        event = group.next()
        if isinstance(event, Reported):
            self._keep_metrics(event.trial)
            return event.trial
        if event:
            self._handle_failure(group, event)
        return None

    def _handle_failure(self, group: TrialGroup, failed: Failed) -> None:
        """Let the others continue without the failed trial if they can. Otherwise fail them too and
        raise the failure: Tune starts them again, unless it is permanent."""
        if self._can_end_alone(group, failed.error):
            self._failed.append(failed.trial.number)
            return

        others = group.list_continuing()
        try:
            self._shut_down()
        # The first failure is the one to raise.
        except Exception as second_error:
            print_line(f"Could not stop the training of {failed.trial.folder}: {second_error}")
        for trial in others:
            group.fail(trial, failed.error)
        if is_user_error(failed.error):
            raise PermanentFailure(str(failed.failure)) from failed.failure
        raise failed.failure

    def _can_end_alone(self, group: TrialGroup, error: BaseException) -> bool:
        """Return whether the failed one of several trials ends alone: it failed with an error of its
        own, and the others continue or have reported, for Tune needs a result. A metric that none
        of them has reported is missing from all."""
        if not self._shares_training or not is_user_error(error):
            return False
        if any(trial.reports for trial in group.trials):
            return True
        return bool(group.list_continuing()) and not isinstance(error, MetricMissing)

    def _keep_metrics(self, trial: ActiveTrial) -> None:
        self._metrics = {
            name: trial.reports[-1][name] for name in (*_COUNTERS, *self._settings.metrics)
        }
        self._metrics[SECONDS] = trial.training_s
        # After an exploit, Tune counts from the other trial's reports.
        if not self._checkpoint:
            self._metrics[TRAINING_ITERATION] = len(trial.reports)

    def _keep_earlier_metrics(self, group: TrialGroup) -> None:
        """Keep the metrics of an earlier attempt, after which a trial was interrupted and made no
        other report."""
        for trial in group.trials:
            if trial.reports:
                self._keep_metrics(trial)
                return

    def _make_result(self, number: int | None) -> dict[str, Any]:
        """Return a result for Tune; `number` is the trial that reported, None once all are over."""
        result = {**self._metrics, DONE: number is None}
        if self._shares_training:
            result[REPORTED] = number
            result[FAILED] = self._failed
            self._failed = []
        return result

    def _make_result_without_report(self) -> dict[str, Any]:
        """Return the result of trials that were interrupted before any report. Tune refuses one
        without the sweep's metrics."""
        metrics = dict.fromkeys(self._settings.metrics, math.nan)
        return {**metrics, DONE: True, REPORTED: None, FAILED: self._failed}

    def stop_early(self, number: int, reason: str) -> None:
        """Stop one of the trials that share this training run, as the driver decided at its
        report."""
        group = self._group
        if group is None:
            return
        for trial in group.trials:
            if trial.number == number:
                group.stop(trial, reason)

    def _shut_down(self) -> None:
        group = self._group
        self._group = None
        if group:
            group.shut_down()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of all ranks into the trial's folder, and its path into Tune's."""
        path = self._group.save() if self._group else self._checkpoint
        Path(checkpoint_dir, _POINTER).write_text(
            format_json({"checkpoint": path, "metrics": self._metrics})
        )

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from what `save_checkpoint` wrote for this or another trial."""
        pointer = parse_json(Path(checkpoint_dir, _POINTER).read_bytes())
        self._shut_down()
        self._checkpoint = pointer["checkpoint"]
        self._metrics = pointer["metrics"]

    def cleanup(self) -> None:
        self._shut_down()
