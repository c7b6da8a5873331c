"""The engine `gang`: one process per rank, without Ray Train; a sweep reuses them from trial to trial."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

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
"""Limit of a collective."""

_DELIVERY_S = 0.5
"""Seconds for Ray to deliver a failed rank's error to rank 0 before the process ends."""

_GONE_S = 5
"""Seconds that a gang waits to learn which rank it has lost."""

_PLACEMENT_S = 3600
"""Seconds that a run waits for resources, as a host may come back or an autoscaler add one."""


class Member(Rank):
    """A rank of a gang, in a trial's process or an actor, which may train the next run too."""

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(workers)
        self.rank = rank
        self._world = World()
        self.lost_peer = False
        """Whether another rank has failed, so that a failure of this one is its echo."""

    def meeting(self) -> str:
        """Return an address on this machine for the ranks' process group."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"

    def begin(self, assignment: Assignment, meeting: str, resolved: ResolvedExperiment | None = None) -> None:
        """Join a new process group and take a run without training yet."""
        self.end()
        if self.workers.max_count > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, init_method=meeting, rank=self.rank, world_size=self.workers.max_count, timeout=TIMEOUT
            )
        self._world = world = World(rank=self.rank, world_size=self.workers.max_count, device=self.device)
        self.lost_peer = False
        world.number_on_nodes()
        self.take(session_of(assignment, world, resolved))

    def abort(self, failure: RankFailed) -> None:
        """Stop waiting for a failed rank. Called from another thread, as the rank's own may wait for its device."""
        self.lost_peer |= not failure.is_possible_echo
        self._world.abort()

    def end(self) -> None:
        """End the run where it is, and leave its process group."""
        super().end()
        if dist.is_initialized():
            dist.destroy_process_group()


class RemoteMember(Member):
    """A rank as an actor."""

    def next(self) -> Report | None:
        """Train to the next report. A failure ends the process once it is delivered.

        The other ranks wait for this one in a collective, and only a closed connection frees them.
        """
        try:
            return super().next()
        except BaseException as error:
            threading.Timer(_DELIVERY_S, os._exit, [1]).start()
            raise RankFailed.from_error(self.rank, error) from None


def _actor_options(workers: Workers) -> dict[str, Any]:
    others = workers.bundle()
    cpus, gpus, memory = (others.pop(name, 0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": int(memory) or None, "resources": others or None}


class Gang:
    """The ranks of a run.

    In a trial, its process is rank 0. The others are actors in the trial's placement group and stay for the next one.
    In a run, all ranks are actors in a placement group of the gang's own, which it removes when the run ends or loses a
    rank.
    """

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
        """Return the resources of each rank."""
        return [workers.bundle()] * workers.max_count

    def _start(self) -> None:
        self._group = get_current_placement_group() if self._in_trial else placement_group(self.bundles(self._workers))
        if not self._in_trial and not self._group.wait(_PLACEMENT_S):
            self._remove_group()
            raise RunError(f"{self._workers.describe('rank')} found no free resources within {_PLACEMENT_S} s")
        self._others = {
            rank: (
                ray.remote(RemoteMember)
                .options(
                    **_actor_options(self._workers),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._group, placement_group_bundle_index=rank
                    ),
                )
                .remote(rank, self._workers)
            )
            for rank in range(1 if self._in_trial else 0, self._workers.max_count)
        }

    def _remove_group(self) -> None:
        if self._group and not self._in_trial:
            remove_placement_group(self._group)
            self._group, self._others = None, {}

    def _end_others(self) -> None:
        """End a trial's other processes, as one has failed and others may wait for it. The next run gets new ones."""
        others, self._group, self._others, self._has_failed = self._others, None, {}, False
        for other in others.values():
            ray.kill(other)

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Give every rank the same run. Raises RankFailed if one cannot take it, RunError without free resources."""
        if self._group is None:
            self._start()
        self._folder = RunFolder(assignment.location)
        meeting = self._here.meeting() if self._here else self._call_all("meeting")
        self._call_all("begin", assignment, meeting, here=(resolved,))

    def next(self) -> Report | None:
        """Train all ranks to the next report and return rank 0's. Raises the first rank's RankFailed."""
        report: Report | None = self._call_all("next")
        return report

    def save(self) -> str:
        """Write a checkpoint of all ranks between two reports; return its path."""
        return str(self._call_all("save"))

    def drop(self, member: int) -> None:
        """End one of the runs that share a training on all ranks."""
        self._call_all("drop", member)

    def end(self) -> None:
        """End the run on every rank. A trial keeps its processes, unless one has failed."""
        if self._has_failed and self._in_trial:
            self._end_others()
        self._call_all("end")
        self._remove_group()

    def _call_all(self, method: str, *arguments: Any, here: tuple[Any, ...] = ()) -> Any:
        """Call a method of all ranks at the same time, that of this process with `here` too; return rank 0's result."""
        calls = {getattr(other, method).remote(*arguments): rank for rank, other in self._others.items()}
        results, failures = {}, {}
        if self._here:
            for call, rank in calls.items():
                call.future().add_done_callback(partial(self._abort_if_failed, self._others, rank))
            try:
                results[0] = getattr(self._here, method)(*arguments, *here)
            except BaseException as error:
                failures[0] = RankFailed.from_error(0, error)
                failures[0].is_possible_echo |= self._here.lost_peer
        while calls and (not failures or all(failure.is_possible_echo for failure in failures.values())):
            # After a failure of a rank's own, the others may wait for it in a collective for ever.
            done, _ = ray.wait(list(calls), timeout=_GONE_S if failures else None)
            if not done:
                break
            rank = calls.pop(done[0])
            try:
                results[rank] = ray.get(done[0])
            except (RayActorError, RayTaskError) as error:
                failures[rank] = self._failure(rank, error)
        if not failures:
            return results[0]
        self._has_failed = True
        self._remove_group()
        raise culprit(failures)

    def _abort_if_failed(self, others: Mapping[int, Any], rank: int, call: Future[Any]) -> None:
        """Tell the rank in this process that another failed. In a thread of Ray's, which must not be blocked."""
        error = call.exception()
        if self._here and self._others is others and isinstance(error, RayActorError | RayTaskError):
            threading.Thread(target=self._here.abort, args=[self._failure(rank, error)], daemon=True).start()

    def _failure(self, rank: int, error: RayActorError | RayTaskError) -> RankFailed:
        if isinstance(error, RayActorError):
            return RankFailed.died(rank, self._folder)
        cause = error.cause
        return cause if isinstance(cause, RankFailed) else RankFailed.from_error(rank, cause)
