"""A rank of a gang, in a trial's process or in an actor."""

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from types import FrameType

import torch
import torch.distributed as dist

from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank import Rank
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_session import RaySession
from orchestrator.engines.rendezvous import AttemptEnd, Rendezvous
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.process.child_signals import for_children

_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
_DELIVERY_S = 0.5
"""Seconds for Ray to deliver a failed rank's error before the process ends."""

_ABORT_S = 5
"""Seconds that a rank waits for its process group to be aborted."""


class GangRank(Rank):
    """A rank of a gang, which can also train the next run or attempt."""

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(workers)
        self.rank = rank
        self.lost_peer = False
        """True once another rank has failed on its own, so a failure of this rank is a
        consequence."""
        self.is_warned = False
        """True once the node of this rank is about to be preempted."""
        self.resolved: ResolvedExperiment | None = None
        """The next run's experiment, if this process has already resolved it."""
        self._abort_thread: threading.Thread | None = None

    def begin(self, assignment: Assignment, rendezvous: Rendezvous) -> None:
        """Join a new process group and take a run without training yet."""
        self.end()
        self.lost_peer = False
        world = self._join_group(rendezvous)
        session = RaySession(
            assignment, world, self.resolved, stop_requested=lambda: self.is_warned
        )
        self.take(session)

    def _join_group(self, rendezvous: Rendezvous) -> World:
        """Join the process group of an attempt, if there are other ranks; collective."""
        size = self.workers.max_count
        if size == 1:
            return World(rank=self.rank, device=self.device)

        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=rendezvous.connect(),
            rank=self.rank,
            world_size=size,
            timeout=_COLLECTIVE_TIMEOUT,
        )
        world = World(rank=self.rank, world_size=size, device=self.device)
        # In a thread of its own, because the rank may be waiting for its device.
        self._abort_thread = threading.Thread(
            target=self._abort_on_failure, args=(rendezvous, world), daemon=True
        )
        self._abort_thread.start()
        world.number_on_nodes()
        return world

    def _abort_on_failure(self, rendezvous: Rendezvous, world: World) -> None:
        """Abort this rank's collectives once another rank has failed."""
        with suppress(RuntimeError):  # the process that drives the gang died
            end = rendezvous.wait_for_end()
            if end == AttemptEnd.RANK_FAILED:
                self.lost_peer = True
            if end != AttemptEnd.COMPLETED:
                world.abort()

    def end(self) -> None:
        """End the run at its current position, and leave its process group. The gang has announced
        the end."""
        self._leave_run()
        if self._abort_thread:
            self._abort_thread.join(_ABORT_S)
            self._abort_thread = None

    def _leave_run(self) -> None:
        """End the run at its current position, and close the connections to the other ranks."""
        super().end()
        if dist.is_initialized():
            dist.destroy_process_group()


class RankActor(GangRank):
    """A rank as an actor, or a spare process that can become one.

    SIGTERM warns that its node is about to be preempted: all ranks save a checkpoint and stop at
    the same step.
    """

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(rank, workers)
        signal.signal(signal.SIGTERM, self._warn)

    @for_children
    def _warn(self, number: int, frame: FrameType | None) -> None:
        self.is_warned = True

    def assign_rank(self, rank: int) -> None:
        """Replace the failed process of a rank."""
        self.rank = rank

    def warm_up(self, source: ExperimentSource) -> None:
        """Import the experiment, and initialize the device."""
        resolve(source)
        torch.zeros(1, device=self.device)

    def list_imported_modules(self) -> list[str]:
        """Return the modules of this process, in the order of their imports."""
        return list(sys.modules)

    def import_modules(self, names: Sequence[str]) -> None:
        """Import the modules that a training rank has imported, such as those of a hook's
        writer."""
        for name in names:
            # Not every entry of `sys.modules` is a module that can be imported.
            with suppress(Exception):
                import_module(name)

    def next(self) -> Report | None:
        """Train to the next report. If this rank fails on its own, end the process once the failure
        is delivered.

        The other ranks may wait for this one in a collective, until its connections close. A rank
        that may only have lost a peer closes its connections itself; its process can take part in
        the next attempt.
        """
        try:
            return super().next()
        except BaseException as error:
            failure = RankFailed.from_error(self.rank, self.workers.max_count, error)
        if failure.can_be_secondary:
            self._leave_run()
        else:
            threading.Timer(_DELIVERY_S, os._exit, [1]).start()
        raise failure
