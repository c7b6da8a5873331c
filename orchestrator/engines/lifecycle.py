"""The lifecycle of a run or a trial on an engine: from where it stands to its end, and what is recorded of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.engines.rank_failures import RankFailed, encodable, is_mistake, keep_traceback, loss_line, told_as
from orchestrator.errors import HookyardError, MetricMissing
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.terminal.display import say

if TYPE_CHECKING:
    from orchestrator.config.resolve import ResolvedExperiment
    from orchestrator.engines.engine import Engine
    from orchestrator.engines.session import Assignment
    from orchestrator.loop.report import Report


_log = logging.getLogger("hookyard")


class Lifecycle:
    """Drives an engine through one run. In whatever process drives the engine: a run's driver, or a trial's.

    It begins as it is first asked for a report, so that what it goes on from is known by then. `restarts` is how often
    it begins again after a loss, from the newest checkpoint, where the engine does not do so itself; -1 is without
    limit.
    """

    def __init__(
        self,
        engine: Engine,
        assignment: Assignment,
        resolved: ResolvedExperiment | None,
        *,
        restarts: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder = RunFolder(assignment.location)
        self._engine, self._assignment, self._resolved = engine, assignment, resolved
        self._restarts, self._tell = restarts, tell
        self._begun = False

    def train(self) -> None:
        """Trains to the end, and writes it down."""
        last = None
        while report := self.next():
            last = report
        self.finish(last)

    def next(self) -> Report | None:
        """Trains up to the next report, which may be of a later attempt; None when the run is over."""
        while True:
            try:
                if not self._begun:
                    # Task and hooks keep what they have seen: each further attempt makes its own.
                    resolved, self._resolved = self._resolved, None
                    self._engine.begin(self._assignment, resolved)
                    self._begun = True
                return self._engine.next()
            except RankFailed as failure:
                if failure.mistake or not self._restarts:
                    raise
                self._restarts -= 1
                self._begun = False
                self._tell(loss_line(failure, self.folder.attempts()))

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path."""
        return self._engine.save()

    def drop(self, member: int) -> None:
        """Ends one of the runs that share a training, with the report that it has just made."""
        self._engine.drop(member)

    def finish(self, last: Report | None) -> None:
        """Lets the run out after its last report, and writes down how it ended."""
        while self._engine.next() is not None:
            pass
        self.end(*ending_of(last))

    def end(self, status: str, reasons: Sequence[str] = ()) -> None:
        """Ends the run where it stands, and writes that down."""
        self.leave()
        self.folder.end(status, stopped=list(reasons), error=None)
        if status in ENDED:
            put_away(self.folder)

    def leave(self) -> None:
        """Lets go of the run where it stands; it may go on elsewhere."""
        if self._begun:
            self._engine.end()
        self._begun = False


def ending_of(last: Report | None) -> tuple[str, Sequence[str]]:
    """How a run has ended by itself, by its last report, and why."""
    stopped = last.stopped if last else ()
    interrupted = last is not None and last.interrupted
    return "interrupted" if interrupted else "stopped" if stopped else "finished", stopped


def put_away(folder: RunFolder) -> None:
    """Puts the rows of a run where they stay. It has ended by then, whatever comes of it: who reads them next tries
    again."""
    from orchestrator.stats.write.compaction import compact

    try:
        compact(folder.storage, folder.attempts())
    except Exception as error:  # whatever it is, they are read from where they are
        _log.warning(
            "the rows of %s stay as its ranks wrote them, and are read so; they cannot be compacted: %s", folder, error
        )


@contextmanager
def failing(folder: RunFolder) -> Iterator[None]:
    """Within it whatever is raised fails the run, unless that has ended, and is raised on as an error of ours."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and folder.metadata().status in ENDED:
            raise
        own = told_as(error)
        try:
            folder.end(
                "failed",
                stopped=[],
                error=encodable(str(own)),
                mistake=is_mistake(error),
                metric_missing=isinstance(error, MetricMissing),
            )
            keep_traceback(folder, error)
        except (HookyardError, OSError) as later:  # what failed first is what is told
            say(f"That {folder} failed cannot be written down: {later}")
        if own is error or isinstance(error, KeyboardInterrupt):
            raise
        raise own from error
