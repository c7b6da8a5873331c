"""The runs of a training: usually one. Runs in workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence

from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.report import Report

FinishRound = Callable[[HookedRun], Generator[Report, None, bool]]
"""Function that finishes the round of a run, yields its reports, and returns whether it continues."""


class Runs(ABC):
    """The runs of a training, and what they exchange with it before, in and after its phases."""

    all: Sequence[HookedRun]

    @property
    def active(self) -> list[HookedRun]:
        """The runs that have not ended."""
        return [run for run in self.all if run.ended_at is None]

    @abstractmethod
    def join_plans(self) -> None:
        """Let the training call the hooks of all active runs."""

    @abstractmethod
    def begin_phase(self) -> None:
        """Prepare a training phase."""

    @abstractmethod
    def forward_requests(self) -> None:
        """Pass the requests of the training and its hooks to the active runs."""

    @abstractmethod
    def end_phase(self) -> None:
        """End a training phase."""

    @abstractmethod
    def take_turns(self, finish_round: FinishRound) -> Generator[Report, None, None]:
        """Let each active run finish its round, and yield their reports."""


class SingleRun(Runs):
    """The only run of a training, whose plan, state and requests are the training's."""

    def __init__(self, run: HookedRun) -> None:
        self.all = [run]

    def join_plans(self) -> None: ...

    def begin_phase(self) -> None: ...

    def forward_requests(self) -> None: ...

    def end_phase(self) -> None: ...

    def take_turns(self, finish_round: FinishRound) -> Generator[Report, None, None]:
        yield from finish_round(self.all[0])
