"""The lifecycle of a run or trial on an engine: restarts after failures, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE, Status
from orchestrator.engines.rank_failures import RankFailed, format_failure_line

if TYPE_CHECKING:
    from orchestrator.engines.assignment import Assignment
    from orchestrator.experiment.resolve import ResolvedExperiment
    from orchestrator.loop.report import Report


class Engine(Protocol):
    """Protocol of engines, which train one run at a time. Used in a run's driver or in a trial's
    process."""

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Begin an attempt of a run. Ranks in this process may use `resolved`; others resolve the
        experiment."""

    def next(self) -> Report | None:
        """Train to the next report; return rank 0's report, or None at the end. Raises RunError on
        failure."""

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""

    def end_run(self, run_index: int) -> None:
        """End one of the runs that share a training run, between two reports."""

    def end(self) -> None:
        """End the run between two reports; return when no process is training it any more."""


class Lifecycle:
    """The lifecycle of one run on an engine. Used in the run's driver or in a trial's process.

    The first call of `next` starts the run. After a failure that is not the user's, the run
    restarts from its newest checkpoint, up to `restarts` times. After a report for which
    `is_preempted` returns true, it restarts up to `preemptions` times. Infinity means no limit.
    """

    def __init__(
        self,
        engine: Engine,
        assignment: Assignment,
        resolved: ResolvedExperiment | None,
        *,
        restarts: float = 0,
        preemptions: float = 0,
        is_preempted: Callable[[Report], bool] = lambda report: False,
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder = RunFolder(assignment.location)
        self.engine = engine
        self._assignment = assignment
        self._resolved = resolved
        self._restarts = restarts
        self._preemptions = preemptions
        self._is_preempted = is_preempted
        self._show_line = show_line
        self._is_running = False

    def train(self, see_report: Callable[[Mapping[str, Any]], None] = lambda metrics: None) -> None:
        """Train to the end, and record it; `see_report` gets the metrics of each report."""
        last = None
        while report := self.next():
            see_report(report.metrics)
            last = report
        self.end(*find_outcome(last))

    def next(self) -> Report | None:
        """Train to the next report, possibly of a later attempt; return None at the end of the
        run."""
        while True:
            try:
                if not self._is_running:
                    resolved = self._resolved
                    # Task and hooks have state, so later attempts create their own.
                    self._resolved = None
                    self.engine.begin(self._assignment, resolved)
                    self._is_running = True
                report = self.engine.next()
                if report is None or not self._preemptions or not self._is_preempted(report):
                    return report
                self._preemptions -= 1
                self._show_line(f"Preempted after step {report.metrics['step']}")
                self._shut_down_preempted()
            except RankFailed as failure:
                if failure.is_user_error or not self._restarts:
                    raise
                self._restarts -= 1
                self._is_running = False
                self._show_line(format_failure_line(failure, self.folder.read_attempts()))

    def _shut_down_preempted(self) -> None:
        """Stop training after a preemption. A rank that is lost meanwhile has already saved."""
        try:
            self.shut_down()
        except RankFailed as failure:
            if failure.is_user_error:
                raise
            self._is_running = False

    def end(self, status: Status, reasons: Sequence[str] = ()) -> None:
        """End the run at its current position, and record its status."""
        self.shut_down()
        self.folder.run_file.end(status, stopped=reasons)
        if status in COMPLETE:
            compact_rows(self.folder)

    def shut_down(self) -> None:
        """Stop training, but do not end the run, which may be resumed."""
        if self._is_running:
            self.engine.end()
        self._is_running = False


def find_outcome(last: Report | None) -> tuple[Status, Sequence[str]]:
    """Return a run's final status and why it stopped early, from its last report."""
    if last is None:
        return "finished", ()
    if last.interrupted:
        return "interrupted", last.stopped
    return "stopped" if last.stopped else "finished", last.stopped
