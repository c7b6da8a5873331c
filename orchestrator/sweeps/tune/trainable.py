"""A trial of a sweep, or trials that share a training run, run by Ray Tune on an engine."""

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.removal import is_within
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import can_restart, find_checkpoint_to_exploit, trial_folder
from orchestrator.engines.failure_record import is_user_error
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.engines.trial_gang import TrialGang
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.sweeps.active_trial import ActiveTrial, list_training
from orchestrator.sweeps.after_failure import AfterFailure, decide_after_failure
from orchestrator.sweeps.begun_trials import begin_trials
from orchestrator.sweeps.search.search import TrialConfig, list_members, shares_training
from orchestrator.sweeps.trial_group import TrialFailed, TrialGroup, TrialReported
from orchestrator.sweeps.tune.result_maker import ResultMaker
from orchestrator.sweeps.tune.trial_data import TRIAL, TrialReport

ENGINES: Mapping[str, type[TrialGang] | type[TrainJobs]] = {"gang": TrialGang, "train": TrainJobs}
"""Engines by name. `list_bundles` returns the resources that Tune reserves for a trial, its own process
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
        self._results = ResultMaker(self._settings, self._config)
        self._checkpoint: str | None = None
        """Checkpoint that Tune has restored, of this trial or of another."""
        self._count_offset: int | None = 0
        """How many reports Tune counts more than the trial has made, which may be negative. It
        counts from another trial's after an exploit; None until the first report after one."""
        self._group: TrialGroup | None = None
        """The trial, or those that share its training run; None before the first step and after the
        last."""

    def step(self) -> dict[str, Any]:
        """Train to the next report with the sweep's metrics."""
        if self._group is None:
            self._group = self._begin_group()
        while not self._group.has_ended:
            for event in self._group.advance():
                match event:
                    case TrialFailed():
                        self._handle_failure(event, self._group)
                    case TrialReported():
                        count = self._count_report(event.trial)
                        result = self._results.add_report(event.trial, count=count)
                        if result is not None:
                            return result

        if self._results.report is None:
            self._keep_earlier_report(self._group.trials)
        self._group = None
        return self._results.make_last_result()

    def _begin_group(self) -> TrialGroup:
        """Begin the trials that have not ended before a restart."""
        members = list_members(self._config)
        if shares_training(self._config):
            members = [
                member
                for member in members
                if can_restart(trial_folder(self._location, member["number"]))
            ]
        begun = begin_trials(members, self._location, self._source, self._settings)
        for member, _ in begun.refused:
            self._results.keep_failure(member["number"])
        if not begun.trials:
            raise PermanentFailure("no trial of this training run is left to train")

        folder = begun.trials[0].folder
        exploited = self._find_exploited(folder)
        if exploited is not None:
            self._count_offset = None
        checkpoint = find_checkpoint_to_exploit(folder, exploited)
        return TrialGroup(self._engine, begun.trials, self._settings, checkpoint)

    def _find_exploited(self, folder: RunFolder) -> str | None:
        """Return the checkpoint of another trial that Tune has restored; None if it is the trial's
        own, which may be the newest or an older one."""
        if self._checkpoint is None or is_within(self._checkpoint, find_checkpoint_folder(folder)):
            return None
        return self._checkpoint

    def _handle_failure(self, failed: TrialFailed, group: TrialGroup) -> None:
        """Let the others continue without the failed trial if they can. Otherwise fail them too and
        raise the failure: Tune starts them again, unless it is permanent."""
        others = [trial for trial in group.trials if trial is not failed.trial]
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

    def _count_report(self, trial: ActiveTrial) -> int:
        """Return how many reports Tune counts for a trial, with its last one."""
        own_count = len(trial.reports)
        if self._count_offset is None:
            self._count_offset = self.iteration + 1 - own_count
        return own_count + self._count_offset

    def _keep_earlier_report(self, trials: Iterable[ActiveTrial]) -> None:
        """Keep a report of an earlier attempt, after which a trial was interrupted and made no
        other report."""
        for trial in trials:
            if trial.reports:
                self._results.keep_report(trial, count=self._count_report(trial))
                return

    def stop_early(self, number: int, reason: str) -> None:
        """Stop one of the trials that share this training run, as the driver decided at its
        report."""
        if self._group is None:
            return
        for trial in self._group.trials:
            if trial.number == number:
                self._group.stop(trial, reason)

    def _shut_down(self) -> None:
        """Stop training. The driver records the ends of trials that have not come to theirs."""
        if self._group:
            self._group.close()
        self._group = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of all ranks into the trial's folder, and its path into Tune's."""
        path = self._group.save() if self._group else self._checkpoint
        report = self._results.report
        pointer = {
            "checkpoint": path,
            "report": asdict(report) if report else None,
            "count_offset": self._count_offset,
        }
        Path(checkpoint_dir, _POINTER).write_text(format_json(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from what `save_checkpoint` wrote for this or another trial."""
        pointer = parse_json(Path(checkpoint_dir, _POINTER).read_bytes())
        self._shut_down()
        self._checkpoint = pointer["checkpoint"]
        self._count_offset = pointer["count_offset"]
        report = pointer["report"]
        self._results.restore(TrialReport(**report) if report else None)

    def cleanup(self) -> None:
        self._shut_down()
