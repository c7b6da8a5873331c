"""A trial of a sweep, or trials that share a training run, run by Ray Tune on an engine."""

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ray import tune
from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.removal import is_within
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import find_checkpoint_to_exploit, trial_folder
from orchestrator.engines.failure_record import is_permanent_error, record_failure
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.engines.trial_gang import TrialGang
from orchestrator.errors import ConfigError, MetricMissing
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.process.streams import print_line
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState
from orchestrator.sweeps.search.search import TrialConfig, list_members
from orchestrator.sweeps.trial_group import TrialGroup
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
    reported. The driver calls `drop` to stop a single one.
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
        self._take_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leave this trial for the next one, on the same engine."""
        self._leave_trial()
        self._take_config(new_config)
        return True

    def _take_config(self, config: dict[str, Any]) -> None:
        self._config: TrialConfig = config[TRIAL]
        self._shares_training = bool(self._config["followers"])
        self._group: TrialGroup | None = None
        self._trials: list[ActiveTrial] = []
        self._failed: list[int] = []
        self._metrics: dict[str, Any] = {}
        self._checkpoint: str | None = None

    def step(self) -> dict[str, Any]:
        """Train to the next report with the sweep's metrics."""
        self._group = self._group or self._begin()
        while self._group:
            try:
                return self._next_result(self._group)
            except Exception as error:  # user code may raise anything
                self._fail(self._group.mark_failed(error), error)
        return self._result(None)

    def _begin(self) -> TrialGroup:
        self._trials = []
        for member in list_members(self._config):
            trial = self._begin_trial(member["number"], member["values"])
            if trial:
                self._trials.append(trial)
        if not self._trials:
            raise PermanentFailure("none of the trials that share this training run could start")
        folder = self._trials[0].folder
        checkpoint = find_checkpoint_to_exploit(folder, self._find_assigned_checkpoint(folder))
        return TrialGroup(self._engine, self._trials, self._settings, checkpoint)

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

    def _next_result(self, group: TrialGroup) -> dict[str, Any]:
        while trial := group.next():
            assert trial.last is not None
            self._keep_metrics(trial)
            if self._shares_training or not trial.last.is_final:
                return self._result(trial.number)
        group.shut_down()
        if not self._metrics and self._trials[0].reports:
            self._keep_metrics(self._trials[0])  # it was interrupted after its last report
        self._group = None
        return self._result(None)

    def _keep_metrics(self, trial: ActiveTrial) -> None:
        self._metrics = {
            name: trial.reports[-1][name] for name in (*_COUNTERS, *self._settings.metrics)
        }
        self._metrics[SECONDS] = trial.seconds
        # After an exploit, Tune counts from the other trial's reports.
        if not self._checkpoint:
            self._metrics[TRAINING_ITERATION] = len(trial.reports)

    def _result(self, number: int | None) -> dict[str, Any]:
        """Return a result for Tune; `number` is the trial that reported, None once all are over."""
        result = {**self._metrics, DONE: number is None}
        if self._shares_training:
            result[REPORTED] = number
            result[FAILED] = self._failed
            self._failed = []
        return result

    def _fail(self, failed: ActiveTrial, error: Exception) -> None:
        """End the failed trial alone if that is possible, otherwise all."""
        others = [trial for trial in self._trials if trial.state is TrialState.TRAINING]
        if self._can_end_alone(error, others):
            self._fail_alone(failed, others, error)
        else:
            self._fail_all([*others, failed], error)

    def _can_end_alone(self, error: Exception, others: Sequence[ActiveTrial]) -> bool:
        """Return whether the failed one of several trials ends alone: it failed with an error of its
        own, and the others continue or have reported. A metric that none of them has reported is
        missing from all."""
        if not self._shares_training or not is_permanent_error(error):
            return False
        have_reported = self._metrics or any(trial.reports for trial in self._trials)
        if isinstance(error, MetricMissing) and not have_reported:
            return False
        return bool(others or self._metrics)

    def _fail_alone(
        self, failed: ActiveTrial, others: Sequence[ActiveTrial], error: Exception
    ) -> None:
        """Record a trial's failure; the others resume from their newest common checkpoint."""
        try:
            self._leave_trial()
        finally:
            record_failure(failed.folder, error)
        self._failed.append(failed.number)
        self._trials = [*others]
        self._group = TrialGroup(self._engine, others, self._settings) if others else None

    def _fail_all(self, trials: Sequence[ActiveTrial], error: Exception) -> NoReturn:
        """Record the failure of the trials, and raise it: Tune starts them again, unless the failure
        is permanent."""
        try:
            self._leave_trial()
        # The first failure is the one to raise.
        except Exception as second_error:
            print_line(f"Could not stop the training of {self._trials[0].folder}: {second_error}")
        failures = [record_failure(trial.folder, error) for trial in trials]
        if is_permanent_error(error):
            raise PermanentFailure(str(failures[-1])) from failures[-1]
        raise failures[-1]

    def drop(self, number: int, reason: str) -> None:
        """Stop one of the trials that share this training run, as the driver decided at its
        report."""
        trial = next((trial for trial in self._trials if trial.number == number), None)
        if self._group and trial:
            self._group.stop(trial, reason)

    def _leave_trial(self) -> None:
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
        self._leave_trial()
        self._checkpoint = pointer["checkpoint"]
        self._metrics = pointer["metrics"]

    def cleanup(self) -> None:
        self._leave_trial()
