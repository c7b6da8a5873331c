"""A trial: one configuration of a sweep, run by Ray Tune on an engine."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts as it is imported, before what is large

# isort: split

import json
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.config.experiment import Workers
from orchestrator.config.source import ExperimentSource
from orchestrator.config.sweep import Sweep
from orchestrator.engines.engine import ENGINES, Engine
from orchestrator.engines.rank_failures import RankFailed, traceback_of, would_come_again
from orchestrator.engines.session import Assignment
from orchestrator.errors import RunError
from orchestrator.loop.report import Report
from orchestrator.private_api.ray_tune import count_from
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import taking_over
from orchestrator.stats.tables import compact
from orchestrator.sweeps.results.previous_trials import judged_reports, seconds_of
from orchestrator.sweeps.search.search import TRIAL
from orchestrator.sweeps.trial_setup import begin_trial

_POINTER = "checkpoint.json"
_COUNTERS = ("epoch", "step", "samples")
"""What Tune is told of a report beside the sweep's metrics: it keeps all that it is told, of every trial."""


class Trial(tune.Trainable):
    """One trial of a sweep at a time; with actor reuse the same process and engine run the next one.

    A step goes on to the next report that holds the sweep's metrics. Each trial is a run of its own under the sweep's
    folder, with the same files as any run. It begins with its first step, so that a checkpoint Tune gives it beforehand
    is what it goes on from: its own after a pause, or another trial's, with other values, in population-based training.
    Tune's checkpoint is a pointer; the real one lies in the folder of the trial that wrote it, and all ranks write and
    read their parts. Where Tune ends a trial, the driver writes that down: only it knows why.

    Where this process dies, or a rank that the engine does not replace, Tune starts the trial anew, on a fresh engine, and
    it goes on from the newest whole checkpoint of its folder; so does one that an earlier life of the sweep has left.
    """

    def setup(
        self, config: dict[str, Any], source: ExperimentSource, settings: Sweep, workers: Workers, location: str
    ) -> None:
        """Starts the engine. `source` is the sweep's, with its settings and its trials' workers; `location` its folder."""
        self._source, self._settings, self._location = source, settings, location
        self._metrics = [metric for metric, _ in settings.objectives]
        self._engine: Engine = ENGINES[settings.engine](workers)
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leaves the present trial for the next one, on the same engine."""
        self._leave()
        self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        self._number, self._values = config[TRIAL]["number"], config[TRIAL]["values"]
        self._folder: RunFolder | None = None
        self._checkpoint: str | None = None
        self._judged: dict[str, Any] = {}

    def _begin(self) -> RunFolder:
        resolved, folder = begin_trial(self._location, self._number, self._source, self._settings, self._values)
        checkpoint = None if self._checkpoint and self._checkpoint.startswith(f"{folder.storage.path}/") else self._checkpoint
        checkpoint = taking_over(folder, checkpoint)
        sweep = self._settings.model_dump(mode="json")
        assignment = Assignment(resolved.experiment.source, folder.location, checkpoint=checkpoint, sweep=sweep)
        try:
            self._engine.begin(assignment, resolved)
        except Exception as error:
            self._fail(folder, error)
            raise
        self._folder, self._first = folder, True
        return folder

    def step(self) -> dict[str, Any]:
        """Trains up to the next report with the sweep's metrics."""
        folder = self._folder or self._begin()
        while True:
            try:
                report = self._engine.next()
            except Exception as error:
                self._fail(folder, error)
                raise
            if self._first:
                self._take_up(folder, report)
            report = report or self._last_word(folder)
            judged = all(metric in report.metrics for metric in self._metrics)
            if judged:
                self._judged = {metric: report.metrics[metric] for metric in self._metrics}
            if report.final or judged:
                return self._answer(folder, report)

    def _take_up(self, folder: RunFolder, report: Report | None) -> None:
        """Counts the reports and the time of a trial that is taken up, as if it had not been interrupted."""
        self._first = False
        if len(folder.attempts()) == 1 or self._checkpoint:
            return
        made = judged_reports(folder, self._settings)
        new = report is not None and all(metric in report.metrics for metric in self._metrics)
        if made and not self._judged:
            self._judged = {metric: made[-1][metric] for metric in self._metrics}
        # Tune counts this step when it is over.
        count_from(self, len(made) - new, seconds_of(folder))

    def _last_word(self, folder: RunFolder) -> Report:
        """The last report of a trial that was interrupted after it, with nothing left to train."""
        made = judged_reports(folder, self._settings)
        if not made:
            raise self._unjudged(folder, f"the trial ended without a report that holds {self._named()}")
        return Report(metrics={name: value for name, value in made[-1].items() if name not in ("attempt", "time")}, final=True)

    def _answer(self, folder: RunFolder, report: Report) -> dict[str, Any]:
        """What Tune is told; a last report without the metrics, such as one of a test phase, keeps those before."""
        if not self._judged:
            there = ", ".join(name for name in report.metrics if "/" in name) or "none"
            raise self._unjudged(folder, f"no report of the trial holds {self._named()}; the last one holds: {there}")
        if report.final:
            self._engine.next()
            self._engine.end()
            compact(folder.storage, folder.attempts())
            folder.end("stopped" if report.stopped else "finished", stopped=list(report.stopped), error=None)
            self._folder = None
        counters = {name: report.metrics[name] for name in _COUNTERS}
        return {**counters, **self._judged, tune.result.DONE: report.final}

    def _named(self) -> str:
        return f"the sweep's metric '{self._metrics[0]}'" if len(self._metrics) == 1 else f"the sweep's metrics {self._metrics}"

    def _unjudged(self, folder: RunFolder, words: str) -> RunError:
        """The failure of a trial that did not report the sweep's metrics; its ranks, which have not failed, end first."""
        failure = RunError(words)
        self._engine.end()
        self._fail(folder, failure)
        return failure

    def _fail(self, folder: RunFolder, error: Exception) -> None:
        self._folder = None
        mistake = error.mistake if isinstance(error, RankFailed) else would_come_again(error)
        folder.end("failed", stopped=[], error=str(error), mistake=mistake)
        folder.log(traceback_of(error))

    def _leave(self) -> None:
        """Lets go of the present trial, wherever it stands; it may go on elsewhere."""
        if self._folder is not None:
            self._engine.end()
        self._folder = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint of all ranks into the trial's own folder, and where it is into Tune's."""
        path = self._engine.save() if self._folder else self._checkpoint
        Path(checkpoint_dir, _POINTER).write_text(json.dumps({"checkpoint": path, "judged": self._judged}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """The trial will go on from what `save_checkpoint` wrote, its own or another one's, with its own values."""
        pointer = json.loads(Path(checkpoint_dir, _POINTER).read_text())
        self._leave()
        self._checkpoint, self._judged = pointer["checkpoint"], pointer["judged"]

    def cleanup(self) -> None:
        """Lets go of the trial when Tune takes the process away."""
        self._leave()
