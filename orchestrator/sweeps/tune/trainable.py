"""A trial: one configuration of a sweep, run by Ray Tune on an engine."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts as it is imported, before what is large

# isort: split

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import TRAINING_ITERATION

from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.sections.workers import Workers
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.engine import ENGINES
from orchestrator.engines.lifecycle import Lifecycle, failing
from orchestrator.engines.rank_failures import is_mistake
from orchestrator.engines.session import Assignment
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.loop.report import Report
from orchestrator.private_api.ray_tune import count_from
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.records.sweep_folder import checkpoint_to_exploit, trial_folder
from orchestrator.sweeps.metric_watch import MetricWatch
from orchestrator.sweeps.results.previous_trials import judged_reports, training_seconds
from orchestrator.sweeps.stopping_rules import BY_SCHEDULER, StoppingRules
from orchestrator.sweeps.trial_group import TrialGroup, TrialUnderWay
from orchestrator.sweeps.trial_setup import begin_trial
from orchestrator.sweeps.tune.tune_config import FAILED, REPORTED, TRIAL

_POINTER = "checkpoint.json"
_COUNTERS = ("epoch", "step", "samples")
"""What Tune gets of a report beside the sweep's metrics: it keeps all that it gets, of every trial."""


class Trial(tune.Trainable):
    """One trial of a sweep at a time; with actor reuse the same process and engine run the next one.

    A step goes on to the next report that holds the sweep's metrics. Each trial is a run of its own under the sweep's
    folder, with the same files as any run. It begins with its first step, so that a checkpoint Tune gives it beforehand
    is what it goes on from: its own after a pause, or another trial's, with other values, in population-based training.
    Tune's checkpoint is a pointer; the real one lies in the folder of the trial that wrote it, and all ranks write and
    read their parts. Where Tune ends a trial, the driver writes that down: only it knows why.

    Where this process dies, or a rank that the engine does not replace, Tune starts the trial anew, on a fresh engine,
    and it goes on from the newest whole checkpoint of its folder; so does one that an earlier attempt of the sweep has
    left.
    """

    def setup(
        self, config: dict[str, Any], source: ExperimentSource, settings: Sweep, workers: Workers, location: str
    ) -> None:
        """Starts the engine. `source` is the sweep's, with its settings and its trials' workers; `location` its
        folder."""
        self._source, self._settings, self._location = source, settings, location
        self._engine = ENGINES[settings.engine](workers)
        self._take_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leaves the present trial for the next one, on the same engine."""
        self._leave_trial()
        self._take_trial(new_config)
        return True

    def _take_trial(self, config: dict[str, Any]) -> None:
        self._number, self._values = config[TRIAL]["number"], config[TRIAL]["values"]
        self._followers = config[TRIAL]["followers"]
        self._group: TrialGroup | None = None
        self._trials: list[TrialUnderWay] = []
        """Of those that share this one's training the ones that were begun, and have not failed."""
        self._failed: list[int] = []
        """Numbers of those that have, and of which Tune has not heard."""
        self._lifecycle: Lifecycle | None = None
        self._checkpoint: str | None = None
        self._judged: dict[str, Any] = {}

    def _begin(self) -> Lifecycle:
        resolved, folder = begin_trial(self._location, self._number, self._source, self._settings, self._values)
        checkpoint = (
            None if self._checkpoint and self._checkpoint.startswith(f"{folder.storage.path}/") else self._checkpoint
        )
        checkpoint = checkpoint_to_exploit(folder, checkpoint)
        sweep = self._settings.model_dump(mode="json")
        assignment = Assignment(resolved.experiment.source, folder.location, checkpoint=checkpoint, sweep=sweep)
        # A loss is Tune's to see to: it may be of this very process.
        lifecycle = Lifecycle(self._engine, assignment, resolved)
        judged = bool(self._judged or judged_reports(folder, self._settings))
        self._first, self._watch = (
            True,
            MetricWatch(self._settings, resolved, folder, judged=judged, leave=lifecycle.leave),
        )
        return lifecycle

    def step(self) -> dict[str, Any]:
        """Trains up to the next report with the sweep's metrics."""
        if self._followers:
            return self._step_together()
        lifecycle = self._lifecycle = self._lifecycle or self._begin()
        try:
            with failing(lifecycle.folder):
                return self._next(lifecycle)
        except Exception:  # whatever user code raises: the next try begins anew
            self._lifecycle = None
            raise

    def _next(self, lifecycle: Lifecycle) -> dict[str, Any]:
        while True:
            report = lifecycle.next()
            if self._first:
                self._count_earlier_reports(lifecycle.folder, report)
            report = report or self._last_report(lifecycle)
            judged = self._watch.holds(report)
            if judged:
                self._judged = {metric: report.metrics[metric] for metric in self._settings.metrics}
            if report.final or judged:
                return self._answer(lifecycle, report)

    def _count_earlier_reports(self, folder: RunFolder, report: Report | None) -> None:
        """Counts the reports and the time of a trial that is taken up, as if it had not been interrupted."""
        self._first = False
        if len(folder.attempts()) == 1 or self._checkpoint:
            return
        made = judged_reports(folder, self._settings)
        new = report is not None and self._settings.has_metrics(report.metrics)
        if made and not self._judged:
            self._judged = {metric: made[-1][metric] for metric in self._settings.metrics}
        # Tune counts this step when it is over.
        count_from(self, len(made) - new, training_seconds(folder))

    def _last_report(self, lifecycle: Lifecycle) -> Report:
        """The last report of a trial that was interrupted after it, with nothing left to train."""
        made = judged_reports(lifecycle.folder, self._settings)
        if not made:
            raise self._watch.unjudged(None)
        return Report(
            metrics={name: value for name, value in made[-1].items() if name not in ("attempt", "time")}, final=True
        )

    def _answer(self, lifecycle: Lifecycle, report: Report) -> dict[str, Any]:
        """What Tune gets; a last report without the metrics, such as one of a test phase, keeps those before."""
        if not self._judged:
            raise self._watch.unjudged(report)
        if report.final:
            lifecycle.finish(report)
            self._lifecycle = None
        counters = {name: report.metrics[name] for name in _COUNTERS}
        return {**counters, **self._judged, tune.result.DONE: report.final}

    def _step_together(self) -> dict[str, Any]:
        """The same of trials that share this one's training."""
        if self._group is None:
            self._begin_together()
        while True:
            assert self._group is not None
            try:
                return self._next_of_all(self._group)
            except Exception as error:  # whatever user code raises, it is one trial's
                self._one_failed(self._group.failed(error), error)
                if not self._trials:
                    return self._result(None)

    def _one_failed(self, failed: TrialUnderWay, error: Exception) -> None:
        """Writes down that a trial has failed by a mistake of its own, and has the others go on from the newest
        checkpoint that all of them have. Else all have failed, and what is raised has Tune start them again; so it is
        where there is nothing else to tell Tune."""
        others = [trial for trial in self._trials if not trial.ending and trial is not failed]
        alone = is_mistake(error) and not isinstance(error, MetricMissing) and bool(others or self._judged)
        try:
            with ExitStack() as stack:
                for trial in (failed,) if alone else (failed, *others):
                    stack.enter_context(failing(trial.folder))
                self._leave_trial()
                raise error  # each folder says it
        except Exception:  # Tune hears of it where it is not one trial's alone
            if not alone:
                raise
        self._failed.append(failed.number)
        self._trials = others
        self._group = TrialGroup(self._engine, others, self._settings) if others else None

    def _begin_together(self) -> None:
        own = {"number": self._number, "values": self._values}
        self._trials = []
        for one in (own, *self._followers):
            before = trial_folder(self._location, one["number"])
            if before.exists() and before.metadata().status in ENDED:
                continue  # and the others were to go on when their process was lost
            # One whose values do not go together has failed by now, and the others go on without it.
            with suppress(ConfigError):
                self._trials.append(
                    TrialUnderWay.begin(self._location, one["number"], self._source, self._settings, one["values"])
                )
        if not self._trials:
            raise RunError("none of the trials that share this training could begin")
        self._group = TrialGroup(self._engine, self._trials, self._settings)
        self._rules = StoppingRules(self._settings, ranks=0)
        self._rules.replay_reports({trial.folder.name: trial.made for trial in self._trials}, 0)

    def _next_of_all(self, group: TrialGroup) -> dict[str, Any]:
        while trial := group.next():
            report = trial.last
            assert report is not None
            judged = trial.watch.holds(report)
            if judged:
                trial.made.append(report.metrics)
            counted = {**report.metrics, TRAINING_ITERATION: len(trial.made)}
            stops = judged and self._rules.stops(trial.folder.name, counted, trial.seconds) and not report.final
            group.judged(trial, self._rules.reasons[trial.folder.name] if stops else None)
            if judged:
                self._judged = {name: report.metrics[name] for name in (*_COUNTERS, *self._settings.metrics)}
                return self._result(trial.number, **{TRAINING_ITERATION: len(trial.made)})
        group.leave()
        self._group = None
        return self._result(None)

    def _result(self, number: int | None, **counts: int) -> dict[str, Any]:
        """What Tune gets of a trial that shares this one's training; None for all of them when they are over."""
        failed, self._failed = self._failed, []
        return {**self._judged, **counts, REPORTED: number, FAILED: failed, tune.result.DONE: number is None}

    def drop(self, number: int) -> None:
        """The scheduler ends one of the trials that share this one's training, with the report that it has just
        made."""
        trial = next((trial for trial in self._trials if trial.number == number), None)
        if self._group and trial and not trial.ending:
            self._group.judged(trial, BY_SCHEDULER)

    def _leave_trial(self) -> None:
        """Lets go of the present trial, wherever it stands; it may go on elsewhere."""
        if self._group is not None:
            self._group.leave()
        self._group = None
        if self._lifecycle is not None:
            self._lifecycle.leave()
        self._lifecycle = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint of all ranks into the trial's own folder, and where it is into Tune's."""
        path = self._lifecycle.save() if self._lifecycle else self._checkpoint
        Path(checkpoint_dir, _POINTER).write_text(json.dumps({"checkpoint": path, "judged": self._judged}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """The trial will go on from what `save_checkpoint` wrote, its own or another one's, with its own values."""
        pointer = json.loads(Path(checkpoint_dir, _POINTER).read_text())
        self._leave_trial()
        self._checkpoint, self._judged = pointer["checkpoint"], pointer["judged"]

    def cleanup(self) -> None:
        """Lets go of the trial when Tune takes the process away."""
        self._leave_trial()
