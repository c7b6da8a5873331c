"""The engine `gang`: one process per rank, without Ray Train; a sweep reuses them from trial to trial."""

from __future__ import annotations

import orchestrator.engines.preload  # noqa: F401  # acts when imported, before the large packages

# isort: split

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.workers import Workers
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.in_process import Rank
from orchestrator.engines.preemption import nodes_of
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

_FREED_S = 5
"""Seconds after a loss in which the other ranks must answer, or else their processes are replaced too."""

_PLACEMENT_S = 3600
"""Seconds that a run waits for resources, as a host may come back or an autoscaler add one."""

_END = "end"
"""Key of the store under which the gang announces the end of an attempt: `failed`, `echo` or `left`."""

_LONGEST = timedelta(days=20)
"""How long ranks wait for that announcement; torch takes milliseconds as an int32."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of an attempt form their process group: a store in the process that drives the gang."""

    host: str
    port: int
    attempt: int

    def store(self) -> PrefixStore:
        """Connect to the store. Keys of other attempts are not visible."""
        store = TCPStore(self.host, self.port, is_master=False, timeout=TIMEOUT)
        return PrefixStore(f"attempt-{self.attempt}", store)


class Member(Rank):
    """A rank of a gang, in a trial's process or an actor, which may train the next run or attempt too."""

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(workers)
        self.rank = rank
        self._listener: threading.Thread | None = None
        self.lost_peer = False
        """Whether another rank has failed, so that a failure of this one is its echo."""
        self.is_warned = False

    def begin(self, assignment: Assignment, rendezvous: Rendezvous, resolved: ResolvedExperiment | None = None) -> None:
        """Join a new process group and take a run without training yet."""
        self.end()
        self.lost_peer, size = False, self.workers.max_count
        if size > 1:
            backend, store = "nccl" if self.device.type == "cuda" else "gloo", rendezvous.store()
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=size, timeout=TIMEOUT)
        world = World(rank=self.rank, world_size=size, device=self.device)
        if size > 1:
            self._listener = threading.Thread(target=self._listen, args=(rendezvous, world), daemon=True)
            self._listener.start()
        world.number_on_nodes()
        self.take(session_of(assignment, world, resolved, stop_asked=lambda: self.is_warned))

    def _listen(self, rendezvous: Rendezvous, world: World) -> None:
        """Stop waiting for a rank that failed. In a thread of its own, as the rank's may wait for its device."""
        with suppress(RuntimeError):  # the process that drives the gang is gone
            store = rendezvous.store()
            store.wait([_END], _LONGEST)
            end = store.get(_END)
            self.lost_peer |= end == b"failed"
            if end != b"left":
                world.abort()

    def end(self) -> None:
        """End the run where it is, and leave its process group. The gang has announced the end."""
        self._leave()
        if self._listener:
            self._listener.join(_FREED_S)
            self._listener = None

    def _leave(self) -> None:
        super().end()
        if dist.is_initialized():
            dist.destroy_process_group()


class RemoteMember(Member):
    """A rank as an actor, or a spare process that can become one.

    SIGTERM is a warning that its node will be taken away: the ranks stop at the same step, after a checkpoint.
    """

    def __init__(self, rank: int, workers: Workers) -> None:
        super().__init__(rank, workers)
        signal.signal(signal.SIGTERM, self._warn)

    def _warn(self, number: int, frame: FrameType | None) -> None:
        self.is_warned = True

    def become(self, rank: int) -> None:
        """Take the place of a rank whose process was lost."""
        self.rank = rank

    def warm_up(self, source: ExperimentSource) -> None:
        """Import the experiment, and initialize the device."""
        resolve(source)
        torch.zeros(1, device=self.device)

    def imported(self) -> list[str]:
        """Return the modules of this process, in the order of their imports."""
        return list(sys.modules)

    def import_modules(self, names: Sequence[str]) -> None:
        """Import what a rank that trains has imported, such as a hook's writer at its first use."""
        for name in names:
            with suppress(Exception):  # not every entry of `sys.modules` is a module that can be imported
                import_module(name)

    def next(self) -> Report | None:
        """Train to the next report. A rank that fails by itself ends its process once the failure is delivered.

        The other ranks wait for this one in a collective, and only closed connections free them. A rank that may have
        lost a peer closes its own connections, and its process can take part in the next attempt.
        """
        try:
            return super().next()
        except BaseException as error:
            failure = RankFailed.from_error(self.rank, error)
        if failure.is_possible_echo:
            self._leave()
        else:
            threading.Timer(_DELIVERY_S, os._exit, [1]).start()
        raise failure


def _actor_options(workers: Workers) -> dict[str, Any]:
    others = workers.bundle()
    cpus, gpus, memory = (others.pop(name, 0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": int(memory) or None, "resources": others or None}


@dataclass(frozen=True)
class _Process:
    """An actor, and the index of its bundle in the placement group."""

    actor: Any
    bundle: int


class Gang:
    """The ranks of a run.

    In a trial, its process is rank 0. The others are actors in the trial's placement group and stay for the next one.
    In a run, all ranks are actors in a placement group of the gang's own. After a failure, the next attempt keeps the
    processes of the ranks that only lost a peer, and replaces the others, first with the spare processes of
    `workers.spares`. Call `close` at the end of a run.
    """

    def __init__(
        self, workers: Workers, *, in_trial: bool = True, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._workers, self._in_trial, self._tell = workers, in_trial, tell
        self._here = Member(0, workers) if in_trial else None
        self._group: PlacementGroup | None = None
        self._others: dict[int, _Process] = {}
        self._spares: list[_Process] = []
        self._cold_spares: list[_Process] = []
        self._folder: RunFolder | None = None
        self._server: TCPStore | None = None
        self._attempt = 0
        self._has_ended = True
        self._has_failed = False
        self._lost: set[int] = set()
        self._pending: dict[Any, int] = {}
        if in_trial:
            self._start()

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """Return the resources of each rank and each spare process."""
        return [workers.bundle()] * (workers.max_count + workers.spares)

    def _start(self) -> None:
        self._group = get_current_placement_group() if self._in_trial else placement_group(self.bundles(self._workers))
        if not self._in_trial and not self._group.wait(_PLACEMENT_S):
            self.close()
            raise self._without_resources()
        ranks = range(1 if self._in_trial else 0, self._workers.max_count)
        self._others = {rank: self._start_process(rank, rank) for rank in ranks}

    def _without_resources(self) -> RunError:
        return RunError(f"{self._workers.describe('rank')} found no free resources within {_PLACEMENT_S} s")

    def _start_process(self, rank: int, bundle: int) -> _Process:
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        actor = ray.remote(RemoteMember).options(**_actor_options(self._workers), scheduling_strategy=place)
        return _Process(actor.remote(rank, self._workers), bundle)

    def close(self) -> None:
        """End all processes, and free their resources."""
        if self._group and not self._in_trial:
            remove_placement_group(self._group)
            self._group, self._others, self._spares, self._cold_spares = None, {}, [], []

    def nodes(self) -> set[str]:
        """Return the ids of the nodes of its processes; any thread may call it."""
        group = self._group
        return nodes_of(group) if group else set()

    def _end_others(self) -> None:
        """End a trial's other processes, as one has failed and others may wait for it. The next run gets new ones."""
        others, self._group, self._others, self._has_failed = self._others, None, {}, False
        for other in others.values():
            ray.kill(other.actor)

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Give every rank the same run. Raises RankFailed if one cannot take it, RunError without free resources."""
        self._announce_end("left")
        if self._group is None:
            self._start()
        elif self._has_failed:
            self._replace_lost()
        self._folder = RunFolder(assignment.location)
        self._call_all("begin", assignment, self._next_rendezvous(), here=(resolved,))
        if not self._in_trial:
            self._start_spares(assignment)

    def _next_rendezvous(self) -> Rendezvous:
        """Return the address of a store in this process, which outlives any rank."""
        if self._server is None:
            self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._attempt += 1
        self._has_ended = False
        return Rendezvous(ray.util.get_node_ip_address(), self._server.port, self._attempt)

    def _announce_end(self, end: str) -> None:
        """Announce the end of the attempt to its ranks, once."""
        if self._server is not None and not self._has_ended:
            self._has_ended = True
            PrefixStore(f"attempt-{self._attempt}", self._server).set(_END, end)

    def _start_spares(self, assignment: Assignment) -> None:
        """Start the spare processes that are missing, in the bundles without a process."""
        used = {process.bundle for process in (*self._others.values(), *self._spares)}
        for bundle in set(range(self._workers.max_count + self._workers.spares)) - used:
            spare = self._start_process(-1, bundle)
            spare.actor.warm_up.remote(assignment.source)
            self._spares.append(spare)
            self._cold_spares.append(spare)

    def _warm_spares(self) -> None:
        """Have new spare processes import what rank 0 has imported up to its first report."""
        if self._cold_spares:
            names = self._others[0].actor.imported.remote()
            for spare in self._cold_spares:
                spare.actor.import_modules.remote(names)
            self._cold_spares = []

    def _replace_lost(self) -> None:
        """Replace the processes of ranks that failed by themselves, or do not answer after the failure of another.

        If no rank is known to be the cause, it may be any of them, so all processes are replaced.
        """
        answers, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=_FREED_S)
        lost = self._lost | {rank for call, rank in self._pending.items() if not self._is_usable(call, answers)}
        lost = lost & self._others.keys() or set(self._others)
        for rank in lost:
            ray.kill(self._others[rank].actor)
        from_spares = {rank for rank in sorted(lost) if self._take_spare(rank)}
        new = {rank: self._start_process(rank, self._others[rank].bundle) for rank in lost - from_spares}
        self._others |= new
        waiting = [process.actor.become.remote(rank) for rank, process in new.items()]
        if len(ray.wait(waiting, num_returns=len(waiting), timeout=_PLACEMENT_S)[0]) < len(waiting):
            raise self._without_resources()
        self._lost, self._pending, self._has_failed = set(), {}, False
        self._tell(_replacement_line(lost, from_spares, len(self._others)))

    def _is_usable(self, call: Any, answers: list[Any]) -> bool:
        """Return whether a process answered, and failed at most as a rank that lost a peer."""
        if call not in answers:
            return False
        try:
            ray.get(call)
        except RayError as error:
            return self._failure(self._pending[call], error).is_possible_echo
        return True

    def _take_spare(self, rank: int) -> bool:
        """Put a spare process in place of a rank's, if one is usable."""
        while self._spares:
            spare = self._spares.pop(0)
            try:
                ray.get(spare.actor.become.remote(rank), timeout=_GONE_S)
            except RayError:
                ray.kill(spare.actor)
            else:
                self._others[rank] = spare
                return True
        return False

    def next(self) -> Report | None:
        """Train all ranks to the next report and return rank 0's. Raises the first rank's RankFailed."""
        report: Report | None = self._call_all("next")
        self._warm_spares()
        return report

    def save(self) -> str:
        """Write a checkpoint of all ranks between two reports; return its path."""
        return str(self._call_all("save"))

    def drop(self, member: int) -> None:
        """End one of the runs that share a training on all ranks."""
        self._call_all("drop", member)

    def end(self) -> None:
        """End the run on every rank. A trial keeps its processes, unless one has failed."""
        self._announce_end("left")
        if self._has_failed and self._in_trial:
            self._end_others()
        self._call_all("end")
        self.close()

    def _call_all(self, method: str, *arguments: Any, here: tuple[Any, ...] = ()) -> Any:
        """Call a method of all ranks at the same time, that of this process with `here` too; return rank 0's result."""
        calls = {getattr(other.actor, method).remote(*arguments): rank for rank, other in self._others.items()}
        results, failures = {}, {}
        if self._here:
            for call, rank in calls.items():
                call.future().add_done_callback(partial(self._announce_failure, rank))
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
            except RayError as error:
                failures[rank] = self._failure(rank, error)
        if not failures:
            return results[0]
        first = culprit(failures)
        self._announce_end("echo" if first.is_possible_echo else "failed")
        self._has_failed, self._pending = True, calls
        self._lost = {rank for rank, failure in failures.items() if not failure.is_possible_echo}
        raise first

    def _announce_failure(self, rank: int, call: Future[Any]) -> None:
        """Tell the rank in this process that another failed. In a thread of Ray's, which must not be blocked."""
        error = call.exception()
        if isinstance(error, RayError):
            self._announce_end("echo" if self._failure(rank, error).is_possible_echo else "failed")

    def _failure(self, rank: int, error: RayError) -> RankFailed:
        if not isinstance(error, RayTaskError):  # the process is gone, perhaps ended by Ray's memory monitor
            return RankFailed.died(rank, self._folder)
        cause = error.cause
        return cause if isinstance(cause, RankFailed) else RankFailed.from_error(rank, cause)


def _replacement_line(lost: Set[int], from_spares: Set[int], count: int) -> str:
    """Return the line that tells which processes the next attempt replaces."""
    ranks = f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, sorted(lost)))}"
    spares = f", {len(from_spares)} with a spare one" if from_spares else ""
    return f"replaced the process of {ranks}{spares}; kept {count - len(lost)} of {count}"
