"""The lifecycle of a run or trial on an engine: restarts after a loss, and what its folder records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.engines.rank_failures import (
    RankFailed,
    escape_surrogates,
    format_failure_line,
    get_traceback,
    to_hookyard_error,
    would_fail_again,
)
from orchestrator.errors import HookyardError, MetricMissing, RunError
from orchestrator.records.run_folder import COMPLETE, RunFolder
from orchestrator.terminal.display import say

if TYPE_CHECKING:
    from orchestrator.config.resolve import ResolvedExperiment
    from orchestrator.engines.engine import Engine
    from orchestrator.engines.session import Assignment
    from orchestrator.loop.report import Report


_log = logging.getLogger("hookyard")


class Lifecycle:
    """The lifecycle of one run on an engine. Used in the run's driver or in a trial's process.

    The run begins with the first call of `next`. After a loss it begins again from the newest checkpoint, up to
    `restarts` times, -1 for no limit; 0 where the engine restarts by itself. So it does after a report that
    `is_preempted`, up to `preemptions` times.
    """

    def __init__(
        self,
        engine: Engine,
        assignment: Assignment,
        resolved: ResolvedExperiment | None,
        *,
        restarts: int = 0,
        preemptions: int = 0,
        is_preempted: Callable[[Report], bool] = lambda report: False,
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder = RunFolder(assignment.location)
        self._engine, self._assignment, self._resolved = engine, assignment, resolved
        self._restarts, self._preemptions = restarts, preemptions
        self._is_preempted, self._show_line = is_preempted, show_line
        self._begun = False

    def train(self) -> None:
        """Train to the end, and write it down."""
        last = None
        while report := self.next():
            last = report
        self.end(*find_outcome(last))

    def next(self) -> Report | None:
        """Train to the next report, perhaps of a later attempt; None when the run is over."""
        while True:
            try:
                if not self._begun:
                    # Task and hooks keep state, so each further attempt makes its own.
                    resolved, self._resolved = self._resolved, None
                    self._engine.begin(self._assignment, resolved)
                    self._begun = True
                report = self._engine.next()
                if report is None or not self._preemptions or not self._is_preempted(report):
                    return report
                self._preemptions -= 1
                self._show_line(f"Preempted after step {report.metrics['step']}")
                self.shut_down()
            except RankFailed as failure:
                if failure.is_user_error or not self._restarts:
                    raise
                self._restarts -= 1
                self._begun = False
                self._show_line(format_failure_line(failure, self.folder.read_attempts()))

    def save(self) -> str:
        return self._engine.save()

    def end_run(self, run_index: int) -> None:
        """End one of the runs that share a training run, at the report that it has just made."""
        self._engine.end_run(run_index)

    def end(self, status: str, reasons: Sequence[str] = ()) -> None:
        """End the run at its current position, and record its status."""
        self.shut_down()
        self.folder.end(status, stopped=list(reasons), error=None)
        if status in COMPLETE:
            compact_rows(self.folder)

    def shut_down(self) -> None:
        """Stop training without ending the run, which may resume elsewhere."""
        if self._begun:
            self._engine.end()
        self._begun = False


def find_outcome(last: Report | None) -> tuple[str, Sequence[str]]:
    """Return a run's final status and the reasons to stop, from its last report."""
    reasons = last.stopped if last else ()
    interrupted = last is not None and last.interrupted
    return "interrupted" if interrupted else "stopped" if reasons else "finished", reasons


def compact_rows(folder: RunFolder) -> None:
    """Join the rows of a run that has ended. A failure only costs readers time."""
    from orchestrator.stats.write.compaction import compact

    try:
        compact(folder.storage, folder.read_attempts())
    except Exception as error:
        _log.warning("could not compact the rows of %s, which stay as its ranks wrote them: %s", folder, error)


@contextmanager
def failing(folder: RunFolder) -> Iterator[None]:
    """Record any error as the run's failure, unless the run has ended, and raise it as an error of ours."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and folder.read_metadata().status in COMPLETE:
            raise
        own = to_hookyard_error(error)
        try:
            folder.end(
                "failed",
                stopped=[],
                error=escape_surrogates(str(own)),
                is_user_error=would_fail_again(error),
                metric_missing=isinstance(error, MetricMissing),
            )
            if (trace := get_traceback(error)) and isinstance(own, RunError):
                folder.log(trace)
                own.traceback_file = f"{folder}/log.txt"
        except (HookyardError, OSError) as later:  # the first failure is the one to raise
            say(f"Could not record the failure of {folder}: {later}")
        if own is error or isinstance(error, KeyboardInterrupt):
            raise
        raise own from error
