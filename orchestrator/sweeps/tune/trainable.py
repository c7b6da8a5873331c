"""A trial of a sweep, or trials that share a training, run by Ray Tune on an engine."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import TRAINING_ITERATION

from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.sections.workers import Workers
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.engine import ENGINES
from orchestrator.engines.lifecycle import failing
from orchestrator.engines.rank_failures import is_mistake
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.private_api.ray_tune import count_from
from orchestrator.records.run_folder import ENDED
from orchestrator.records.sweep_folder import checkpoint_to_exploit, trial_folder
from orchestrator.sweeps.stopping_rules import BY_SCHEDULER, StoppingRules
from orchestrator.sweeps.trial_group import ActiveTrial, TrialGroup
from orchestrator.sweeps.tune.tune_config import FAILED, REPORTED, TRIAL

_POINTER = "checkpoint.json"
_COUNTERS = ("epoch", "step", "samples")
"""What Tune gets besides the sweep's metrics. It keeps all that it gets."""


class Trial(tune.Trainable):
    """A trial of a sweep. With actor reuse the same process and engine run the next one.

    A step goes to the next report with the sweep's metrics. Each trial is a run of its own in the sweep's folder. It
    begins with its first step, so that Tune can restore a checkpoint before. A checkpoint of Tune's is a pointer; the
    real one is in the folder of the trial that wrote it. If Tune ends a trial, the driver writes that down.

    After the loss of this process or of a rank, Tune starts the trial again on a new engine, and the trial resumes from
    its newest checkpoint.

    Trials that share a training are one trial for Tune, whose results name the trial that reported. This process
    applies the sweep's stopping rules to each of them.
    """

    def setup(
        self, config: dict[str, Any], source: ExperimentSource, settings: Sweep, workers: Workers, location: str
    ) -> None:
        """Start the engine. `source`, `settings`, `workers` and `location` are the sweep's."""
        self._source, self._settings, self._location = source, settings, location
        self._engine = ENGINES[settings.engine](workers)
        self._take_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leave the present trial for the next one, on the same engine."""
        self._leave_trial()
        self._take_config(new_config)
        return True

    def _take_config(self, config: dict[str, Any]) -> None:
        self._config = config[TRIAL]
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
                self._fail(self._group.failed(error), error)
        return self._result(None)

    def _begin(self) -> TrialGroup:
        self._trials = []
        for member in (self._config, *self._config["followers"]):
            folder = trial_folder(self._location, member["number"])
            if self._shares_training and folder.exists() and folder.metadata().status in ENDED:
                continue  # it ended before the others lost their process
            try:
                trial = ActiveTrial.begin(
                    self._location, member["number"], self._source, self._settings, member["values"]
                )
            except ConfigError:
                if not self._shares_training:
                    raise
                continue  # the others go on without it
            self._trials.append(trial)
        if not self._trials:
            raise RunError("none of the trials that share this training could begin")
        if self._shares_training:
            self._rules = StoppingRules(self._settings, ranks=0)
            self._rules.replay_reports({trial.folder.name: trial.reports for trial in self._trials}, 0)
        self._is_first = True
        folder = self._trials[0].folder
        is_own = self._checkpoint and self._checkpoint.startswith(f"{folder.storage.path}/")
        checkpoint = checkpoint_to_exploit(folder, None if is_own else self._checkpoint)
        return TrialGroup(self._engine, self._trials, self._settings, checkpoint)

    def _next_result(self, group: TrialGroup) -> dict[str, Any]:
        while trial := group.next():
            assert trial.last is not None
            self._keep_metrics(trial)
            if self._shares_training:
                return self._shared_result(group, trial)
            self._count_earlier_reports(trial)
            if not trial.last.final:
                return self._result(None, is_done=False)
        group.leave()
        if not self._metrics and self._trials[0].reports:
            self._keep_metrics(self._trials[0])  # it was interrupted after its last report
        self._group = None
        return self._result(None)

    def _shared_result(self, group: TrialGroup, trial: ActiveTrial) -> dict[str, Any]:
        name, count = trial.folder.name, {TRAINING_ITERATION: len(trial.reports)}
        assert trial.last is not None
        if self._rules.stops(name, {**trial.last.metrics, **count}, trial.seconds) and not trial.last.final:
            group.stop(trial, self._rules.reasons[name])
        return {**self._result(trial.number, is_done=False), **count}

    def _keep_metrics(self, trial: ActiveTrial) -> None:
        self._metrics = {name: trial.reports[-1][name] for name in (*_COUNTERS, *self._settings.metrics)}

    def _count_earlier_reports(self, trial: ActiveTrial) -> None:
        """Have Tune count the reports and the time of earlier attempts."""
        if self._is_first and len(trial.folder.attempts()) > 1 and not self._checkpoint:
            count_from(self, len(trial.reports) - 1, trial.seconds_before)  # Tune adds this step when it is over
        self._is_first = False

    def _result(self, number: int | None, *, is_done: bool = True) -> dict[str, Any]:
        """Return what Tune gets; `number` is the trial that reported where trials share a training."""
        failed, self._failed = self._failed, []
        shared = {REPORTED: number, FAILED: failed} if self._shares_training else {}
        return {**self._metrics, **shared, tune.result.DONE: is_done}

    def _fail(self, failed: ActiveTrial, error: Exception) -> None:
        """Write down a failure.

        If one of several trials failed by its own mistake, the others resume from their newest common checkpoint.
        Otherwise all failed, and raising the error has Tune start them again.
        """
        others = [trial for trial in self._trials if not trial.ending and trial is not failed]
        has_result = self._shares_training and bool(others or self._metrics)
        alone = has_result and is_mistake(error) and not isinstance(error, MetricMissing)
        try:
            with ExitStack() as stack:
                for trial in (failed,) if alone else (failed, *others):
                    stack.enter_context(failing(trial.folder))
                self._leave_trial()
                raise error
        except Exception:
            if not alone:
                raise
        self._failed.append(failed.number)
        self._trials = others
        self._group = TrialGroup(self._engine, others, self._settings) if others else None

    def drop(self, number: int) -> None:
        """Stop one of the trials that share this training, as the scheduler decided at its report."""
        trial = next((trial for trial in self._trials if trial.number == number), None)
        if self._group and trial:
            self._group.stop(trial, BY_SCHEDULER)

    def _leave_trial(self) -> None:
        if self._group:
            self._group.leave()
        self._group = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of all ranks into the trial's folder, and its path into Tune's."""
        path = self._group.save() if self._group else self._checkpoint
        Path(checkpoint_dir, _POINTER).write_text(json.dumps({"checkpoint": path, "metrics": self._metrics}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Have the trial go on from what `save_checkpoint` wrote for it or for another trial."""
        pointer = json.loads(Path(checkpoint_dir, _POINTER).read_text())
        self._leave_trial()
        self._checkpoint, self._metrics = pointer["checkpoint"], pointer["metrics"]

    def cleanup(self) -> None:
        """Leave the trial when Tune takes the process away."""
        self._leave_trial()
