"""A trial: one configuration of a sweep, run by Ray Tune on a warm gang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ray
from ray import tune

from orchestrator.config.load import experiment_from_dict, resolved
from orchestrator.errors import RunError
from orchestrator.loop.loop import Report
from orchestrator.runs.folder import ENDED, RunFolder
from orchestrator.runs.session import Assignment
from orchestrator.stats.tables import compact
from orchestrator.sweeps.folder import begin_trial
from orchestrator.sweeps.gang import Gang

SPACE = "space"
"""Under which key of Tune's config a trial's values stand."""


class Trial(tune.Trainable):
    """One trial of a sweep at a time; with actor reuse the same process and gang run the next one.

    A step goes on to the next report that holds the sweep's metric. Each trial is a run of its own under the sweep's
    folder, with the same files as any run, so a trial that was cut off goes on from its last checkpoint.
    """

    def setup(self, config: dict[str, Any], experiment: dict[str, Any], import_paths: tuple[str, ...], location: str) -> None:
        """Starts the gang and the first trial. `experiment` is the resolved sweep; `location` the sweep's folder."""
        self._experiment = experiment_from_dict(experiment, import_paths)
        self._location = location
        self._folder: RunFolder | None = None
        self._gang = Gang(self._experiment.workers, ray.util.get_current_placement_group())
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Starts the next trial on the same gang."""
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._leave("stopped", "the scheduler ended the trial")
        self._judged: float | None = None
        values = config[SPACE]
        experiment, self._folder = begin_trial(self._location, str(self.trial_id), self._experiment, values)
        self._gang.begin(Assignment(resolved(experiment), experiment.import_paths, str(self._folder)))

    def step(self) -> dict[str, Any]:
        """Trains up to the next report with the sweep's metric."""
        metric = self._metric()
        while True:
            try:
                report = self._gang.next()
            except Exception as error:
                self._leave("failed", error=str(error))
                raise
            if report is None:
                raise RunError(f"the trial ended without a report that holds the sweep's metric '{metric}'")
            if metric in report.metrics:
                self._judged = report.metrics[metric]
            if report.final or metric in report.metrics:
                return self._answer(report, metric)

    def _answer(self, report: Report, metric: str) -> dict[str, Any]:
        """What Tune is told; a last report without the metric, such as one of a test phase, keeps the one before."""
        if self._judged is None:
            there = ", ".join(name for name in report.metrics if "/" in name) or "none"
            wrong = f"no report of the trial holds the sweep's metric '{metric}'; the last one holds: {there}"
            self._leave("failed", error=wrong)
            raise RunError(wrong)
        if report.final:
            self._gang.next()
            self._leave("stopped" if report.stopped else "finished")
        return {metric: self._judged, **report.metrics, tune.result.DONE: report.final}

    def _metric(self) -> str:
        assert self._experiment.sweep is not None
        return self._experiment.sweep.metric

    def _leave(self, status: str, stopped: str | None = None, error: str | None = None) -> None:
        """Ends the present trial, if there is one, and writes down how it ended."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        if status != "failed":
            self._gang.end()
        if status in ENDED:
            compact(folder.storage, folder.attempts())
        folder.end(status, stopped=[stopped] if stopped else [], error=error)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Names the trial's newest checkpoint, which lies in the trial's own folder."""
        pointer = {"folder": str(self._folder)} if self._folder else {}
        Path(checkpoint_dir, "trial.json").write_text(json.dumps(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to do: a trial goes on from the checkpoints in its own folder."""

    def cleanup(self) -> None:
        """Ends the trial when Tune takes the process away."""
        self._leave("stopped", "the scheduler ended the trial")
