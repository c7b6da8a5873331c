"""The training of a trial, or of several that share a training run, to their ends.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.lifecycle import Engine, Lifecycle
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.process.streams import print_line
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState, list_training


@dataclass(frozen=True)
class TrialReported:
    """A trial has reported the sweep's metrics. It can be stopped at this report."""

    trial: ActiveTrial


@dataclass(frozen=True)
class TrialFailed:
    """A trial has failed, and its folder records it."""

    trial: ActiveTrial
    error: Exception
    """What was raised."""
    failure: HookyardError
    """What to raise."""

    @classmethod
    def record(cls, trial: ActiveTrial, error: Exception) -> "TrialFailed":
        """Record in its folder that a trial has failed."""
        return cls(trial, error, trial.record_failure(error))


@dataclass(frozen=True)
class TrialEnded:
    """A trial has ended without a failure: its folder records it, and its rows are compacted."""

    trial: ActiveTrial


TrialEvent = TrialReported | TrialFailed | TrialEnded


class TrialGroup:
    """Trials that train together until each has ended.

    They train in attempts. If one of them fails, the attempt ends, and the others continue in the
    next one from their newest common checkpoint.
    """

    def __init__(
        self,
        engine: Engine,
        trials: Sequence[ActiveTrial],
        settings: SweepSettings,
        checkpoint: str | None = None,
    ) -> None:
        """Prepare the training, which begins with the first `advance`.

        Args:
            engine: What trains the trials.
            trials: The trials, which have begun. The first one leads.
            settings: The sweep.
            checkpoint: Checkpoint of another trial that a single trial continues from.
        """
        self._engine = engine
        self.trials = trials
        self._settings = settings
        self._checkpoint = checkpoint
        self._lifecycle: Lifecycle | None = None
        """Training in the current attempt; None between two attempts."""
        self._runs: Sequence[ActiveTrial] = ()
        """The trials of the newest attempt, by the indices of their runs."""

    @property
    def has_ended(self) -> bool:
        """True once the ends of all trials are recorded."""
        return all(trial.state is TrialState.ENDED for trial in self.trials)

    @property
    def is_training(self) -> bool:
        """True while an attempt trains, and False between two of them."""
        return self._lifecycle is not None

    def advance(self) -> list[TrialEvent]:
        """Train to the next report, and return what has happened to the trials, in order.

        If a trial has reported, this is the last event, and the trial can be stopped until the next
        call.
        """
        lifecycle = self._lifecycle or self._begin_attempt()
        try:
            report = lifecycle.next()
            if report is None:
                lifecycle.shut_down()
        # User code and engines may raise anything, which is the failure of a trial.
        except Exception as error:
            return self.fail(self._find_failed(error), error)

        if report is None:
            failures = self._record_ends(self._list_unended())
            return [*failures, *self.close()]

        # Their files are closed, because the engine has trained past their last reports.
        failures = self._record_ends(self._list_ending())
        return [*failures, *self._add_report(report)]

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the others train on."""
        assert trial.last is not None
        if trial.state is TrialState.TRAINING:
            self._engine.end_run(trial.last.run_index)
        trial.stop(reason)

    def fail(self, trial: ActiveTrial, error: Exception) -> list[TrialEvent]:
        """Record the failure of a trial and end the attempt; return what has happened to all
        trials, the failure first."""
        return [TrialFailed.record(trial, error), *self.close()]

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._engine.save()

    def close(self) -> list[TrialEvent]:
        """End the attempt; return which of its trials have ended, and whose ends could not be
        recorded. A trial that has not come to its end can train in another attempt."""
        if self._lifecycle is None:
            return []
        try:
            self._lifecycle.shut_down()
        # It is no failure of a trial: the next attempt begins with processes that work, or fails.
        except Exception as error:
            print_line(f"Could not stop the training of {self._lifecycle.folder}: {error}")
        self._lifecycle = None

        return [*self._record_ends(self._list_ending()), *self._compact_rows()]

    def _begin_attempt(self) -> Lifecycle:
        """Begin to train the trials that have not come to their ends."""
        self._runs = list_training(self.trials)
        sweep = self._settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(
                trial.source, trial.folder.location, checkpoint=self._checkpoint, sweep=sweep
            )
            for trial in self._runs
        )
        for trial in self._runs:
            trial.begin_attempt()
        assignment = replace(leader, followers=tuple(followers))
        self._lifecycle = Lifecycle(self._engine, assignment, self._runs[0].take_resolved())
        return self._lifecycle

    def _add_report(self, report: Report) -> list[TrialEvent]:
        """Add a report to its trial. It is an event only if it has the sweep's metrics."""
        trial = self._runs[report.run_index]
        try:
            has_metrics = trial.add_report(report)
        # An unreadable folder or a missing metric fails the trial that reported, and not the sweep.
        except Exception as error:
            return self.fail(trial, error)
        return [TrialReported(trial)] if has_metrics else []

    def _find_failed(self, error: Exception) -> ActiveTrial:
        """Return the trial whose run an error of the engine names. If it names none, because a
        process died, the first trial that still trains has failed. A recorded end stays."""
        index = find_failed_run(error)
        if index is not None and self._runs[index].state is not TrialState.ENDED:
            return self._runs[index]

        return self._list_unended()[0]

    def _list_unended(self) -> list[ActiveTrial]:
        """Return the trials whose end is not recorded, first those that train."""
        return [*list_training(self._runs), *self._list_ending()]

    def _list_ending(self) -> list[ActiveTrial]:
        return [trial for trial in self._runs if trial.state is TrialState.ENDING]

    def _record_ends(self, trials: Iterable[ActiveTrial]) -> list[TrialFailed]:
        """Record the ends of trials; return those whose ends could not be recorded, and which have
        failed."""
        failures = []
        for trial in trials:
            try:
                trial.record_end()
            # A trial whose end is not on disk has failed; the other ends are still recorded.
            except Exception as error:
                failures.append(TrialFailed.record(trial, error))
        return failures

    def _compact_rows(self) -> list[TrialEnded]:
        """Compact the rows of the trials that have ended without a failure, and return those."""
        ended = []
        for trial in self._runs:
            if trial.state is TrialState.ENDED and trial.status != "failed":
                compact_rows(trial.folder)
                ended.append(TrialEnded(trial))
        return ended
