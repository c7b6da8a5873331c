"""The engine `in-process`: a single rank in this process, without Ray; and what a rank is wherever it runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from functools import cached_property

import torch

from hooks.state import Display
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.workers import Workers
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_environment import Resources, local_resources, refuse_unless_fits, starts_ray
from orchestrator.engines.session import Assignment, Session
from orchestrator.engines.shared_training import SharedSession, session_of
from orchestrator.errors import HookyardError, UsageError
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


def device_of(workers: Workers) -> torch.device:
    """Where a rank in this process trains; raises UsageError where a GPU is asked for and torch can use none."""
    if not workers.gpu:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    build = f"torch {torch.__version__}"
    why = (
        f"{build} finds none that it can use here"
        if torch.version.cuda or torch.version.hip
        else f"{build} is built for CPUs alone"
    )
    raise UsageError(f"workers.gpu asks for a GPU, and {why}. Say workers.gpu=false to train on the CPU")


def refuse_what_is_not_here(workers: Workers, what: str, address: str | None, *, local: bool) -> None:
    """Raises UsageError where ranks are to train on this machine, and it has too little for them or torch can use no
    GPU. Driver."""
    if local:
        device_of(workers)
    elif starts_ray(address):
        refuse_unless_fits(Resources.asked_by(workers), local_resources(), what)
        device_of(workers)


class Rank:
    """One rank: trains one run after another in the same process."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._session: Session | SharedSession | None = None
        self._reports: Generator[Report, None, None] | None = None

    @cached_property
    def device(self) -> torch.device:
        """Where it trains; not found out before a run is begun, whose failure it then is."""
        return device_of(self.workers)

    def take_up(self, session: Session | SharedSession) -> None:
        """Takes up a run; nothing is trained yet."""
        self._session, self._reports = session, session.reports()

    def next(self) -> Report | None:
        """Trains up to the next report; None when the run is over."""
        assert self._reports is not None
        return next(self._reports, None)

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path."""
        assert self._session is not None
        return self._session.save()

    def drop(self, member: int) -> None:
        """Ends a run, or one of those that share a training, with the report that it has just made."""
        if isinstance(self._session, SharedSession):
            self._session.drop(member)
        elif self._reports is not None:
            self._reports.close()

    def end(self) -> None:
        """Ends the run, wherever it stands, and gives back what it held of the GPU: the peaks of the next one are its
        own."""
        if self._reports is not None:
            self._reports.close()
        self._session = self._reports = None
        if self.device.type == "cuda":
            gc.collect()  # a task, a hook or torch itself (its exporter, say) may tie a model into a cycle
            torch.cuda.empty_cache()


class InProcess(Rank):
    """The only rank of a run, for notebooks, debuggers and `--local`. It cannot lose a process without losing its
    driver."""

    def __init__(
        self,
        workers: Workers,
        *,
        display: Display | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
        end_hung: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(workers)
        self._display, self._stop_asked, self._end_hung = display, stop_asked, end_hung

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Takes up a run."""
        world = World(device=self.device)
        options = {"display": self._display, "stop_asked": self._stop_asked, "end_hung": self._end_hung}
        self.take_up(session_of(assignment, world, resolved, **options))

    def next(self) -> Report | None:
        """Trains up to the next report; raises RankFailed where the experiment fails."""
        try:
            return super().next()
        except HookyardError:
            raise
        except BaseException as error:  # a signal raises nothing here: `Interrupts` notes it
            raise RankFailed.from_error(0, error) from error
