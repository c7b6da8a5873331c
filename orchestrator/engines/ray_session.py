"""A session in a process that Ray started: its rank 0 talks to the driver. Used in workers."""

from collections.abc import Callable, Generator

from orchestrator.engines.assignment import Assignment
from orchestrator.engines.mailbox import MailboxLink
from orchestrator.engines.printed_lines import PrintedLines
from orchestrator.engines.ray_data import data_of
from orchestrator.engines.session import Session
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


class RaySession(Session):
    """A session whose rank 0 sends lines, progress and what user code prints to the driver's
    mailbox, and asks it whether the run should stop. The arguments are those of `Session`.

    The other ranks need no mailbox, because the ranks agree on when to stop.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        data_of: DataOf = data_of,
    ) -> None:
        link: MailboxLink | None = None
        if assignment.mailbox and world.is_master:
            link = MailboxLink(assignment.mailbox)
        self._link = link

        def should_stop() -> bool:
            return stop_requested() or (link is not None and link.stop_requested())

        super().__init__(
            assignment,
            world,
            resolved,
            display=link,
            stop_requested=should_stop,
            data_of=data_of,
        )

    def reports(self) -> Generator[Report, None, None]:
        link = self._link
        if link is None:
            yield from super().reports()
            return
        try:
            with PrintedLines(link.add_printed).collect():
                yield from super().reports()
        finally:
            link.finish()
