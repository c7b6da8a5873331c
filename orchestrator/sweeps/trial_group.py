"""Groups of trials that share one training run.

This code runs in the driver, or under Tune in the trial's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.lifecycle import Lifecycle
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.loop.sharing.failed_run import find_failed_run, marking_failed_run
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState

if TYPE_CHECKING:
    from orchestrator.engines.lifecycle import Engine


class TrialGroup:
    """Trials that share one training run. The first is the leader.

    A trial's end is recorded at the next report: by then its files are closed.
    """

    def __init__(
        self,
        engine: Engine,
        trials: Sequence[ActiveTrial],
        settings: SweepSettings,
        checkpoint: str | None = None,
    ) -> None:
        self._engine = engine
        self._trials = trials
        sweep = settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(trial.source, trial.folder.location, checkpoint=checkpoint, sweep=sweep)
            for trial in trials
        )
        leader = replace(leader, followers=tuple(followers))
        self._lifecycle = Lifecycle(engine, leader, trials[0].take_resolved())
        for trial in trials:
            trial.begin_attempt()

    def next(self) -> ActiveTrial | None:
        """Train until a trial reports the sweep's metrics, and return that trial; return None once
        all have ended.

        Raises RunError for a trial that ended without the sweep's metrics; errors in training or
        hooks propagate.
        """
        while True:
            report = self._lifecycle.next()
            if report is None:
                self._lifecycle.shut_down()
                for trial in self._trials:
                    with self.marking_failure(trial):
                        trial.end()
                self._record_ends()
                return None

            self._record_ends()
            trial = self._trials[report.run_index]
            with self.marking_failure(trial):
                has_metrics = trial.add_report(report)
                if report.is_final:
                    trial.end()
            if has_metrics:
                return trial

    @contextmanager
    def marking_failure(self, trial: ActiveTrial) -> Iterator[None]:
        """Mark an error of the block as the trial's own, for `mark_failed`."""
        with marking_failed_run(self._trials.index(trial)):
            yield

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the other trials of the group continue."""
        assert trial.last is not None
        if trial.state is TrialState.TRAINING:
            self._engine.end_run(trial.last.run_index)
        trial.stop(reason)

    def mark_failed(self, error: BaseException) -> ActiveTrial:
        """Mark the trial that failed, and return it; the caller records its failure. Raises the
        error if all trials have ended, because a recorded outcome stays."""
        unended = [trial for trial in self._trials if not trial.has_ended]
        if not unended:
            raise error
        failed = self._find_failed(error, unended)
        failed.fail()
        return failed

    def _find_failed(self, error: BaseException, unended: Sequence[ActiveTrial]) -> ActiveTrial:
        """Return the trial by which an error is marked. If a process died, nothing is marked, and
        the first trial that still trains has failed."""
        index = find_failed_run(error)
        if index is not None and not self._trials[index].has_ended:
            return self._trials[index]
        training = [trial for trial in unended if trial.state is TrialState.TRAINING]
        return [*training, *unended][0]

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._engine.save()

    def shut_down(self) -> None:
        """Stop training. Trials that have not ended may be resumed."""
        self._lifecycle.shut_down()
        self._record_ends()
        for trial in self._trials:
            if trial.state is TrialState.RECORDED:
                compact_rows(trial.folder)

    def _record_ends(self) -> None:
        for trial in self._trials:
            if trial.state is TrialState.ENDING:
                with self.marking_failure(trial):
                    trial.record()
