"""An attempt to train a trial, or several that share a training run.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Iterable, Iterator, Sequence
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


class TrainingAttempt:
    """An attempt to train trials together until each has ended, or until one of them fails.

    The others can continue in another attempt, from their newest common checkpoint.
    """

    def __init__(
        self,
        engine: Engine,
        trials: Sequence[ActiveTrial],
        settings: SweepSettings,
        checkpoint: str | None = None,
    ) -> None:
        """Prepare the attempt, which begins with `train`.

        Args:
            engine: What trains the trials.
            trials: The trials, which have begun. The first one leads.
            settings: The sweep.
            checkpoint: Checkpoint of another trial that a single trial continues from.
        """
        sweep = settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(trial.source, trial.folder.location, checkpoint=checkpoint, sweep=sweep)
            for trial in trials
        )
        for trial in trials:
            trial.begin_attempt()
        self._engine = engine
        self.trials = trials
        """The trials, by the indices of their runs."""
        self._lifecycle = Lifecycle(
            engine, replace(leader, followers=tuple(followers)), trials[0].take_resolved()
        )
        self._is_closed = False

    def train(self) -> Iterator[TrialEvent]:
        """Train to the end of the attempt, and yield what happens to the trials. In the end, and
        from the failure of a trial on, the attempt is closed."""
        while not self._is_closed:
            try:
                report = self._train_to_report()
            # User code and engines may raise anything, which is the failure of a trial.
            except Exception as error:
                yield from self.close_after_failure(self._find_failed(error), error)
                return

            if report is None:
                yield from self._record_ends(self._list_unended())
                yield from self.close()
                return

            # Their files are closed, because the engine has trained past their last reports.
            yield from self._record_ends(self._list_ending())
            # The attempt may have been closed because an end could not be recorded. The trial of
            # the report then continues in another attempt.
            if not self._is_closed:
                yield from self._add_report(report)

    def _train_to_report(self) -> Report | None:
        """Train to the next report and return it; at the end, close the trials' files and return
        None."""
        report = self._lifecycle.next()
        if report is None:
            self._lifecycle.shut_down()
        return report

    def _add_report(self, report: Report) -> Iterator[TrialEvent]:
        """Add a report to its trial. It is an event only if it has the sweep's metrics."""
        trial = self.trials[report.run_index]
        try:
            has_metrics = trial.add_report(report)
        # An unreadable folder or a missing metric fails the trial that reported, and not the sweep.
        except Exception as error:
            yield from self.close_after_failure(trial, error)
            return
        if has_metrics:
            yield TrialReported(trial)

    def _find_failed(self, error: Exception) -> ActiveTrial:
        """Return the trial whose run an error of the engine names. If it names none, because a
        process died, the first trial that still trains has failed. A recorded end stays."""
        index = find_failed_run(error)
        if index is not None and self.trials[index].state is not TrialState.ENDED:
            return self.trials[index]

        return self._list_unended()[0]

    def _list_unended(self) -> list[ActiveTrial]:
        """Return the trials whose end is not recorded, first those that train."""
        return [*list_training(self.trials), *self._list_ending()]

    def _list_ending(self) -> list[ActiveTrial]:
        return [trial for trial in self.trials if trial.state is TrialState.ENDING]

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the others train on."""
        assert trial.last is not None
        if trial.state is TrialState.TRAINING:
            self._engine.end_run(trial.last.run_index)
        trial.stop(reason)

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._engine.save()

    def close_after_failure(
        self, trial: ActiveTrial, error: Exception
    ) -> list[TrialFailed | TrialEnded]:
        """Record the failure of a trial, and close the attempt; return what happened to all
        trials, the failure first."""
        return [TrialFailed.record(trial, error), *self.close()]

    def close(self) -> list[TrialFailed | TrialEnded]:
        """Stop training; return which trials have ended, and whose ends could not be recorded. A
        trial that has not come to its end can train in another attempt."""
        if self._is_closed:
            return []
        self._is_closed = True
        try:
            self._lifecycle.shut_down()
        # It is no failure of a trial: the next attempt begins with processes that work, or fails.
        except Exception as error:
            print_line(f"Could not stop the training of {self._lifecycle.folder}: {error}")

        return [*self._record_ends(self._list_ending()), *self._compact_rows()]

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
        for trial in self.trials:
            if trial.state is TrialState.ENDED and trial.status != "failed":
                compact_rows(trial.folder)
                ended.append(TrialEnded(trial))
        return ended
