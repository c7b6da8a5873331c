"""The engine `gang`: a process for each rank, without Ray Train between; a sweep's stay warm from trial to trial."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts as it is imported, before what is large

# isort: split

import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import ray
import torch.distributed as dist
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.workers import Workers
from orchestrator.engines.in_process import Rank
from orchestrator.engines.rank_failures import RankFailed, culprit
from orchestrator.engines.session import Assignment
from orchestrator.engines.shared_training import session_of
from orchestrator.errors import RunError
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.records.run_folder import RunFolder

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others before it gives up."""

_LAST_WORDS_S = 0.5
"""What a failed rank leaves Ray to carry its error to rank 0."""

_GONE_S = 5
"""How long a gang that has lost a rank waits to hear which."""

_ROOM_S = 3600
"""How long a run waits for places on a cluster, where a host may come back and an autoscaler takes its time."""


class Member(Rank):
    """One rank of a gang, in a process that may be kept for the next run. The process of a trial, or an actor."""

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(workers)
        self.rank = rank
        self._world = World()
        self.lost_peer = False
        """Whether another rank has failed, of which this one's own failure is an echo."""

    def meeting(self) -> str:
        """Where ranks may find each other on this one's machine."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"

    def begin(self, assignment: Assignment, meeting: str, resolved: ResolvedExperiment | None = None) -> None:
        """Joins a new process group and takes up a run; nothing is trained yet."""
        self.end()
        if self.workers.max_count > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, init_method=meeting, rank=self.rank, world_size=self.workers.max_count, timeout=TIMEOUT
            )
        self._world = world = World(rank=self.rank, world_size=self.workers.max_count, device=self.device)
        self.lost_peer = False
        world.number_on_nodes()
        self.take_up(session_of(assignment, world, resolved))

    def abort(self, failure: RankFailed) -> None:
        """Has this rank wait no more for one that has failed. From another thread: its own may be waiting for its
        device."""
        self.lost_peer |= not failure.may_be_echo
        self._world.abort()

    def end(self) -> None:
        """Ends the run, wherever it stands, and leaves its process group."""
        super().end()
        if dist.is_initialized():
            dist.destroy_process_group()


class RemoteMember(Member):
    """A rank as an actor."""

    def next(self) -> Report | None:
        """As for any member; a failure ends the process, once it is told.

        The other ranks wait for this one in a collective, and only a closed connection frees them. Nothing
        else is begun in it.
        """
        try:
            return super().next()
        except BaseException as error:
            threading.Timer(_LAST_WORDS_S, os._exit, [1]).start()
            raise RankFailed.from_error(self.rank, error) from None


def _options(workers: Workers) -> dict[str, Any]:
    """What an actor asks for of its place."""
    others = workers.bundle()
    cpus, gpus, memory = (others.pop(name, 0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": int(memory) or None, "resources": others or None}


class Gang:
    """The ranks of a run. A trial's process is rank 0 itself, the others are actors in the trial's placement group and
    stay for the next one. A run's driver is no rank: all of them are actors in a group of the gang's own, which is
    given back when the run ends or loses one."""

    def __init__(self, workers: Workers, *, in_trial: bool = True) -> None:
        self._workers, self._in_trial = workers, in_trial
        self._here = Member(0, workers) if in_trial else None
        self._group: PlacementGroup | None = None
        self._others: dict[int, Any] = {}
        self._folder: RunFolder | None = None
        self._has_failed = False
        if in_trial:
            self._start()

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """A place for each rank."""
        return [workers.bundle()] * workers.max_count

    def _start(self) -> None:
        self._group = get_current_placement_group() if self._in_trial else placement_group(self.bundles(self._workers))
        if not self._in_trial and not self._group.wait(_ROOM_S):
            self._give_back()
            raise RunError(f"there was no room for {self._workers.describe('rank')} within {_ROOM_S} s")
        self._others = {
            rank: (
                ray.remote(RemoteMember)
                .options(
                    **_options(self._workers),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._group, placement_group_bundle_index=rank
                    ),
                )
                .remote(rank, self._workers)
            )
            for rank in range(1 if self._in_trial else 0, self._workers.max_count)
        }

    def _give_back(self) -> None:
        """Ends the processes that are this gang's own."""
        if self._group and not self._in_trial:
            remove_placement_group(self._group)
            self._group, self._others = None, {}

    def _end_others(self) -> None:
        """Ends a trial's other processes, of which one has failed or waits for one that did: what is begun next gets
        new ones."""
        others, self._group, self._others, self._has_failed = self._others, None, {}, False
        for other in others.values():
            ray.kill(other)

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Gives every rank the same run; raises RankFailed where one cannot take it up, RunError where there is no
        room."""
        if self._group is None:
            self._start()
        self._folder = RunFolder(assignment.location)
        meeting = self._here.meeting() if self._here else self._together("meeting")
        self._together("begin", assignment, meeting, here=(resolved,))

    def next(self) -> Report | None:
        """All ranks train up to the next report; returns rank 0's. Raises RankFailed of the rank the failure began
        with."""
        report: Report | None = self._together("next")
        return report

    def save(self) -> str:
        """All ranks write a checkpoint between two reports; returns its path."""
        return str(self._together("save"))

    def drop(self, member: int) -> None:
        """All ranks end one of the runs that share a training."""
        self._together("drop", member)

    def end(self) -> None:
        """Ends the run on every rank; a trial's processes stay, unless one of them has failed."""
        if self._has_failed and self._in_trial:
            self._end_others()
        self._together("end")
        self._give_back()

    def _together(self, method: str, *arguments: Any, here: tuple[Any, ...] = ()) -> Any:
        """What all ranks do at the same time, the one in this process with more; returns rank 0's answer."""
        calls = {getattr(other, method).remote(*arguments): rank for rank, other in self._others.items()}
        answers, failures = {}, {}
        if self._here:
            for call, rank in calls.items():
                call.future().add_done_callback(partial(self._told_beside, self._others, rank))
            try:
                answers[0] = getattr(self._here, method)(*arguments, *here)
            except BaseException as error:
                failures[0] = RankFailed.from_error(0, error)
                failures[0].may_be_echo |= self._here.lost_peer
        while calls and (not failures or all(failure.may_be_echo for failure in failures.values())):
            # Where a failure is a rank's own, the others may still wait for it in a collective.
            done, _ = ray.wait(list(calls), timeout=_GONE_S if failures else None)
            if not done:
                break
            rank = calls.pop(done[0])
            try:
                answers[rank] = ray.get(done[0])
            except (RayActorError, RayTaskError) as error:
                failures[rank] = self._failure(rank, error)
        if not failures:
            return answers[0]
        self._has_failed = True
        self._give_back()
        raise culprit(failures)

    def _told_beside(self, others: Mapping[int, Any], rank: int, call: Future[Any]) -> None:
        """Hears of a rank that fails while the one in this process trains with it; in a thread of Ray's, which is not
        to be kept."""
        error = call.exception()
        if self._here and self._others is others and isinstance(error, RayActorError | RayTaskError):
            threading.Thread(target=self._here.abort, args=[self._failure(rank, error)], daemon=True).start()

    def _failure(self, rank: int, error: RayActorError | RayTaskError) -> RankFailed:
        if isinstance(error, RayActorError):
            return RankFailed.died(rank, self._folder)
        told = error.cause
        return told if isinstance(told, RankFailed) else RankFailed.from_error(rank, told)
