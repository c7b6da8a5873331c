"""The runs of a loop from the first event to the last, and after a failure. Runs in workers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

from hooks.errors import describe_error
from orchestrator.loop.report import Report
from orchestrator.loop.training_run import TrainingRun

logger = logging.getLogger("hookyard")

DEVICE_TIMEOUT_S = 2.0
"""Seconds that a failing rank waits for its device before it aborts the process group."""


AnyRun = TypeVar("AnyRun", bound=TrainingRun)


class BaseLoop(ABC, Generic[AnyRun]):
    """A loop in a worker: `for report in loop.run(): ...`.

    It trains one run, or several runs that share a training. All ranks yield the same number of
    reports, at the same points. A loop does not depend on Ray.
    """

    def __init__(self, runs: Sequence[AnyRun]) -> None:
        self.runs = runs
        self._runs_to_end: set[int] = set()
        """Indices of the runs that the caller ends at their last reports."""
        self.when_run_ended: Callable[[], None] = lambda: None
        """Called as soon as a run has ended, before the others train on."""
        self.world = runs[0].world
        self.state = runs[0].state
        self.world.when_aborted += [run.recorder.drop_device_values for run in runs]

    @property
    def active(self) -> list[AnyRun]:
        """The runs that have not ended."""
        return [run for run in self.runs if run.ended_at is None]

    def restore(self, *names: str | None) -> None:
        """Restore a checkpoint of each run, None for one without, and fire `on_load`. Call before
        `run`; collective."""
        try:
            for run, name in zip(self.runs, names, strict=True):
                if name is not None:
                    run.restore(name)
        except BaseException as error:
            self._handle(error)
            raise

    def run(self) -> Generator[Report, None, None]:
        """Train to the end and yield a report after each round. On an error, fire `on_exception`
        and re-raise it."""
        try:
            yield from self._train_and_end()
        except GeneratorExit:
            raise
        except BaseException as error:
            self._handle(error)
            self.abandon()
            raise

    def _train_and_end(self) -> Iterator[Report]:
        """Train, and end all runs: also if the caller closes the generator, because other ranks may
        have failed."""
        try:
            self._begin()
            yield from self._produce_reports()
            for run in self.active:
                run.checkpoints.finish()
        except GeneratorExit:
            self._end()
            raise
        self._end()

    @abstractmethod
    def _begin(self) -> None:
        """Fire `on_start`."""

    @abstractmethod
    def _produce_reports(self) -> Iterator[Report]:
        """Yield the report of each round, from the restored checkpoint's stage on."""

    # The end of a run

    def request_end(self, run_index: int) -> None:
        """End a run at the report that it has just made; training may continue for the others."""
        self._runs_to_end.add(run_index)

    def _is_end_requested(self, run: AnyRun) -> bool:
        return run.index in self._runs_to_end

    def _end_run(self, run: AnyRun) -> None:
        """End a run; training may continue for the others."""
        run.end()
        self.when_run_ended()

    def _end(self) -> None:
        for run in self.active:
            self._end_run(run)
        first = self.runs[0]
        first.fire_remaining("on_end")  # of a shared training
        self._close()
        first.close()

    def _list_open_runs(self) -> list[AnyRun]:
        """Return the runs whose rows are not closed."""
        return [run for run in self.runs if run.ended_at is None or run.is_leader]

    @abstractmethod
    def _close(self) -> None:
        """Release the model, the optimizers and the data."""

    def save(self) -> str | None:
        """Write a checkpoint of the only run between two reports and return its name;
        collective."""
        return self.runs[0].checkpoints.save()

    # A failure

    def abandon(self) -> None:
        """Close everything after a failure, on this rank alone and without hooks."""
        self._clean_up(self._close)
        for run in self._list_open_runs():
            self._clean_up(run.checkpoints.abandon, run.checkpoints.close, run.flusher.close)
            self._warn_of_incomplete_rows(run)

    def _handle(self, error: BaseException) -> None:
        runs = self._list_open_runs()
        for run in runs:
            # Wait only briefly for the device: it may have failed, or be blocked by a rank that
            # died.
            flush_rows = partial(run.recorder.flush_within, DEVICE_TIMEOUT_S)
            self._clean_up(flush_rows, run.plan.stop_device_timing)
        self._clean_up(self.world.abort)
        for run in runs:
            run.recorder.drop_device_values()
            run.fire_remaining("on_exception", error)

    def _clean_up(self, *calls: Callable[[], object]) -> None:
        """Make calls after a failure. An error in one of them is only logged, to keep the original
        error."""
        for call in calls:
            try:
                call()
            except Exception as error:
                logger.warning(
                    "Rank %d: after a failure, %s failed: %s",
                    self.world.rank,
                    getattr(call, "func", call).__qualname__,
                    describe_error(error),
                )

    def _warn_of_incomplete_rows(self, run: AnyRun) -> None:
        rows = run.recorder.incomplete_rows
        if rows:
            logger.warning(
                "The last %d rows of rank %d are incomplete: its device had not finished"
                " computing them",
                rows,
                self.world.rank,
            )
