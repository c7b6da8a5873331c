"""The engine `gang`: the ranks of one trial, kept warm for the next. Runs in the trial's process, which is rank 0."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts as it is imported, before what is large

# isort: split

import os
import socket
import threading
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, TypeVar

import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.config.experiment import Workers
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.rank_failures import RankFailed, culprit
from orchestrator.engines.session import Assignment, Session
from orchestrator.loop.report import Report
from orchestrator.loop.world import World

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others before it gives up."""

_LAST_WORDS_S = 0.5
"""What a failed rank leaves Ray to carry its error to rank 0."""

_GONE_S = 5
"""How long rank 0, having lost a peer, waits to hear which."""

T = TypeVar("T")


class Member:
    """One rank of a gang: trains one trial after another in the same process.

    Rank 0 lives in the trial's own process; the others are actors.
    """

    def __init__(self, rank: int, workers: Workers) -> None:
        self.rank, self.workers = rank, workers
        self._session: Session | None = None
        self._reports: Generator[Report, None, None] | None = None
        torch.set_num_threads(max(1, int(workers.cpus)))

    def begin(self, assignment: Assignment, meeting: str, resolved: ResolvedExperiment | None = None) -> None:
        """Joins a new process group and takes up a trial; nothing is trained yet."""
        self.end()
        device = torch.device("cuda", 0) if self.workers.gpu and torch.cuda.is_available() else torch.device("cpu")
        if self.workers.most > 1:
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, init_method=meeting, rank=self.rank, world_size=self.workers.most, timeout=TIMEOUT
            )
        world = World(rank=self.rank, world_size=self.workers.most, device=device)
        world.number_on_nodes()
        self._session = Session(assignment, world, resolved)
        self._reports = self._session.reports()

    def next(self) -> Report | None:
        """Trains up to the next report; None when the trial is over."""
        assert self._reports is not None
        return next(self._reports, None)

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path."""
        assert self._session is not None
        return self._session.save()

    def end(self) -> None:
        """Ends the trial, wherever it stands, and leaves its process group."""
        if self._reports is not None:
            self._reports.close()
        self._session = self._reports = None
        if dist.is_initialized():
            dist.destroy_process_group()


class RemoteMember(Member):
    """A rank other than 0, as an actor."""

    def next(self) -> Report | None:
        """As for any member; a failure ends the process, once it is told.

        The other ranks wait for this one in a collective, and only a closed connection frees them. Tune does not use
        the gang of a failed trial again.
        """
        try:
            return super().next()
        except Exception as error:
            threading.Timer(_LAST_WORDS_S, os._exit, [1]).start()
            raise RankFailed.told(self.rank, error) from None


class Gang:
    """All ranks of a trial: this process and one actor for each other bundle of the trial's placement group."""

    def __init__(self, workers: Workers) -> None:
        self._master, group = Member(0, workers), get_current_placement_group()
        self._others = [
            ray.remote(RemoteMember)
            .options(
                num_cpus=workers.cpus,
                num_gpus=1 if workers.gpu else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            )
            .remote(rank, workers)
            for rank in range(1, workers.most)
        ]

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """A place for each rank."""
        return [workers.resources()] * workers.most

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment) -> None:
        """Gives every rank the same trial; raises RankFailed where one cannot take it up."""
        meeting = f"tcp://{ray.util.get_node_ip_address()}:{_free_port()}"
        joining = [other.begin.remote(assignment, meeting) for other in self._others]
        self._together(joining, lambda: self._master.begin(assignment, meeting, resolved))

    def next(self) -> Report | None:
        """All ranks train up to the next report; returns rank 0's. Raises RankFailed of the rank the failure began with."""
        return self._together([other.next.remote() for other in self._others], self._master.next)

    def save(self) -> str:
        """All ranks write a checkpoint between two reports; returns its path."""
        return self._together([other.save.remote() for other in self._others], self._master.save)

    def end(self) -> None:
        """Ends the trial on every rank; the processes stay."""
        self._together([other.end.remote() for other in self._others], self._master.end)

    def _together(self, others: list[Any], mine: Callable[[], T]) -> T:
        """What rank 0 does while the others do the same."""
        try:
            result = mine()
        except Exception as error:
            failure = RankFailed.told(0, error)
            # Where the failure is this rank's own, the others still wait for it in a collective.
            failures = self._failures(others, timeout_s=_GONE_S) if failure.may_be_echo else {}
            raise culprit({0: failure, **failures}) from error
        failures = self._failures(others)
        if failures:
            raise culprit(failures)
        return result

    def _failures(self, others: list[Any], timeout_s: float | None = None) -> dict[int, RankFailed]:
        """How other ranks have failed, of those that are done in time."""
        done, _ = ray.wait(others, num_returns=len(others), timeout=timeout_s) if others else ([], [])
        outcomes = {others.index(other) + 1: _failure(others.index(other) + 1, other) for other in done}
        return {rank: failure for rank, failure in outcomes.items() if failure is not None}


def _failure(rank: int, outcome: Any) -> RankFailed | None:
    """How a rank failed, if it did."""
    try:
        ray.get(outcome)
    except RayActorError:
        return RankFailed.died(rank)
    except RayTaskError as error:
        told = error.cause
        return told if isinstance(told, RankFailed) else RankFailed.told(rank, told)
    return None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
