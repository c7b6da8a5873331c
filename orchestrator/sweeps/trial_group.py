"""Groups of trials that share one training run.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.failure_record import recording_failure
from orchestrator.engines.lifecycle import Engine, Lifecycle
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.sweeps.active_trial import ActiveTrial


@dataclass(frozen=True)
class Reported:
    """A trial has reported the sweep's metrics."""

    trial: ActiveTrial


@dataclass(frozen=True)
class Failed:
    """A trial has failed, and its folder records it."""

    trial: ActiveTrial
    error: BaseException
    """What was raised."""
    failure: HookyardError
    """What to raise."""


class TrialGroup:
    """Trials that share a training run until each has ended. The first is the leader.

    If one fails, the others continue without it, from their newest common checkpoint. The end of a
    trial is recorded when the group trains on, because its files are closed then.
    """

    def __init__(
        self,
        engine: Engine,
        trials: Sequence[ActiveTrial],
        settings: SweepSettings,
        checkpoint: str | None = None,
    ) -> None:
        """Train nothing yet.

        Args:
            engine: What trains them.
            trials: The trials, all of which are running.
            settings: The sweep.
            checkpoint: Checkpoint of another trial that the only one continues from.
        """
        self.trials = trials
        self._engine = engine
        self._settings = settings
        self._checkpoint = checkpoint
        self._lifecycle: Lifecycle | None = None
        """The attempt that trains; None before it begins, and once it is shut down."""
        self._members = trials
        """The trials of the attempt, by the indices of their runs."""
        self._events: deque[Reported | Failed] = deque()
        """What has happened and `next` has not returned yet."""

    @property
    def has_ended(self) -> bool:
        """True once all trials have ended and `next` has returned every event."""
        return not self._events and all(trial.has_ended for trial in self.trials)

    def list_continuing(self) -> list[ActiveTrial]:
        """Return the trials that do not end at their last report."""
        return [trial for trial in self.trials if not trial.is_at_end]

    def next(self) -> Reported | Failed | None:
        """Train until a trial reports the sweep's metrics or fails; return None once all have
        ended."""
        if any(trial.status == "failed" for trial in self._members):
            self.shut_down()
        while not self._events and not self.has_ended:
            if self._lifecycle is None:
                self._lifecycle = self._begin_attempt()
            self._train(self._lifecycle)
        if self._events:
            return self._events.popleft()
        self.shut_down()
        return None

    def _begin_attempt(self) -> Lifecycle:
        sweep = self._settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(
                trial.source, trial.folder.location, checkpoint=self._checkpoint, sweep=sweep
            )
            for trial in self._members
        )
        for trial in self._members:
            trial.begin_attempt()
        resolved = self._members[0].take_resolved()
        return Lifecycle(self._engine, replace(leader, followers=tuple(followers)), resolved)

    def _train(self, lifecycle: Lifecycle) -> None:
        """Train to the next report or to the end, and keep what happens as events."""
        try:
            report = lifecycle.next()
            if report is None:
                lifecycle.shut_down()
        except BaseException as error:
            self._events.append(self.fail(self._find_failed(error), error))
            return

        # Not the trial of this report, because its files are still open.
        ending = [trial for trial in self._members if report is None or trial.is_at_end]
        if report:
            self._add_report(report)
        self._record_ends(ending)

    def _add_report(self, report: Report) -> None:
        """Add a report to its trial. It is an event only if it has the sweep's metrics."""
        trial = self._members[report.run_index]
        try:
            if trial.add_report(report):
                self._events.append(Reported(trial))
        except BaseException as error:
            self._events.append(self.fail(trial, error))

    def _find_failed(self, error: BaseException) -> ActiveTrial:
        """Return the trial whose run an error of the engine names. If it names none, because a
        process died, the first trial that still trains has failed. A recorded end stays."""
        index = find_failed_run(error)
        if index is not None and not self._members[index].has_ended:
            return self._members[index]
        running = [trial for trial in self._members if not trial.has_ended]
        return min(running, key=lambda trial: trial.is_at_end)

    def _record_ends(self, trials: Sequence[ActiveTrial]) -> None:
        """Record the ends of trials; one whose end cannot be recorded has failed."""
        for trial in trials:
            if trial.has_ended:
                continue
            try:
                trial.end()
            except BaseException as error:
                self._events.append(self.fail(trial, error))

    def fail(self, trial: ActiveTrial, error: BaseException) -> Failed:
        """Record that a trial has failed; `next` continues without it. Raises an interruption."""
        trial.fail()
        try:
            with recording_failure(trial.folder):
                raise error
        except HookyardError as failure:
            return Failed(trial, error, failure)

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the other trials of the group continue."""
        assert trial.last is not None
        if not trial.is_at_end:
            self._engine.end_run(trial.last.run_index)
        trial.stop(reason)

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._engine.save()

    def shut_down(self) -> None:
        """Stop training. Trials that do not end at their last report may be resumed."""
        self._close_attempt()
        self._record_ends([trial for trial in self._members if trial.is_at_end])
        self._compact()
        self._members = self.list_continuing()

    def _close_attempt(self) -> None:
        lifecycle = self._lifecycle
        self._lifecycle = None
        if lifecycle:
            lifecycle.shut_down()

    def _compact(self) -> None:
        """Compact the rows of the trials that have ended without a failure."""
        for trial in self._members:
            if trial.status not in ("running", "failed"):
                compact_rows(trial.folder)
