"""The engine `in-process`: a single rank in this process, without Ray."""

from collections.abc import Callable

from hooks.loop_services import Display
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank import Rank
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.rank_termination import RankTermination
from orchestrator.engines.session import Session
from orchestrator.errors import HookyardError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


class InProcess(Rank):
    """The only rank of a run, for notebooks, debuggers and `--local`."""

    def __init__(
        self,
        workers: Workers,
        *,
        display: Display | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        end_hung: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(workers)
        self._display = display
        self._stop_requested = stop_requested
        self._end_hung = None
        if end_hung:
            self._end_hung = RankTermination(end_hung)

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        # While the failure of an earlier run was handled, its traceback still held the model.
        self.end()
        world = World(device=self.device)
        session = Session(
            assignment,
            world,
            resolved,
            display=self._display,
            stop_requested=self._stop_requested,
            end_hung=self._end_hung,
        )
        self.take(session)

    def next(self) -> Report | None:
        """Train to the next report. Raises RankFailed if the experiment fails."""
        try:
            return super().next()
        except HookyardError:
            raise
        except BaseException as error:  # signals do not raise here, see `Interrupts`
            raise RankFailed.from_error(0, 1, error) from error
