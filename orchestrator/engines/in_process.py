"""The engine `in-process`, a single rank in this process without Ray; and the base class of
ranks."""

import gc
from collections.abc import Callable, Generator
from functools import cached_property

import torch

from hooks.loop_services import Display
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.hang_watch import RankTermination
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_connection import needs_start
from orchestrator.engines.resources import Resources, find_local_resources
from orchestrator.engines.session import Session
from orchestrator.errors import HookyardError, UsageError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


def find_device(workers: Workers) -> torch.device:
    """Return the device of a rank in this process. Raises UsageError if torch cannot use the GPU it
    needs."""
    if not workers.gpu:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    reason = "is built for CPUs only"
    if torch.version.cuda or torch.version.hip:
        reason = "finds no usable GPU"
    raise UsageError(
        f"workers.gpu needs a GPU, but torch {torch.__version__} {reason}; set workers.gpu=false to"
        " train on the CPU"
    )


def check_local_resources(workers: Workers, what: str, address: str | None, *, local: bool) -> None:
    """Raise UsageError if the ranks train on this machine and it lacks a resource or a usable
    GPU."""
    if local:
        find_device(workers)
    elif needs_start(address):
        required = Resources.required_by(workers)
        present = find_local_resources()
        if required.find_missing(present):
            raise UsageError(
                f"{what} needs {required}, but this machine has {present}; reduce `workers`, or use --address"
            )
        find_device(workers)


class Rank:
    """A rank, which can train several runs in the same process, one after another."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._session: Session | None = None
        self._reports: Generator[Report, None, None] | None = None

    @cached_property
    def device(self) -> torch.device:
        """Device of the rank; chosen at the start of a run, so an error belongs to that run."""
        return find_device(self.workers)

    def take(self, session: Session) -> None:
        """Take a run without training yet."""
        self._session = session
        self._reports = session.reports()

    def next(self) -> Report | None:
        assert self._reports is not None
        return next(self._reports, None)

    def save(self) -> str:
        assert self._session is not None
        return self._session.save()

    def end_run(self, run_index: int) -> None:
        """End the run, or one run of a shared training, at the report that it has just made."""
        if self._session is not None and self._session.is_shared:
            self._session.end_run(run_index)
        elif self._reports is not None:
            self._reports.close()

    def end(self) -> None:
        """End the run at its current position, and free its GPU memory, so the next run's peaks are
        its own."""
        if self._reports is not None:
            self._reports.close()
        self._session = self._reports = None
        if self.device.type == "cuda":
            gc.collect()  # a reference cycle of a task, a hook or torch may contain the model
            torch.cuda.empty_cache()


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
