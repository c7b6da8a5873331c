"""The engine `gang`: one process per rank, without Ray Train. The trials of a sweep reuse the
processes."""

from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang_rank import END, AttemptEnd, GangRank, RankActor, Rendezvous
from orchestrator.engines.preemption import nodes_of
from orchestrator.engines.rank_failures import RankFailed, find_root_failure
from orchestrator.errors import RunError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report

_ANSWER_TIMEOUT_S = 5
"""Seconds to wait after a rank fails: for the rank that caused it, for the other ranks, and for a
spare process."""

_PLACEMENT_TIMEOUT_S = 3600
"""Seconds to wait for resources; a host may return, or an autoscaler may add one."""


@dataclass(frozen=True)
class _Process:
    """An actor, and the index of its bundle in the placement group."""

    actor: Any
    bundle: int


@dataclass(frozen=True)
class _AttemptFailure:
    """Failed ranks of an attempt, and the calls that had not returned."""

    ranks: Set[int]
    """Ranks whose failure is not a consequence of another rank's."""
    calls: dict[Any, int]
    """Rank of each call that was still pending."""


class Gang:
    """The ranks of a run.

    In a sweep, the trial's process is rank 0. The other ranks are actors in the trial's placement
    group, and the next trial reuses them. In a single run, all ranks are actors in a placement
    group that the gang creates. After a failure, the next attempt keeps the processes of the ranks
    that only lost a peer. It replaces the others, with the spare processes of `workers.spares`
    first. Call `close` at the end of a run.
    """

    def __init__(
        self,
        workers: Workers,
        *,
        in_trial: bool = True,
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._workers = workers
        self._in_trial = in_trial
        self._show_line = show_line
        self._own_rank = GangRank(0, workers) if in_trial else None
        self._group: PlacementGroup | None = None
        self._actors: dict[int, _Process] = {}
        """The ranks in other processes."""
        self._spares: list[_Process] = []
        self._cold_spares: list[_Process] = []
        """New spares, which have not yet imported rank 0's modules."""
        self._folder: RunFolder | None = None
        self._server: TCPStore | None = None
        self._attempts = 0
        self._attempt_store: PrefixStore | None = None
        """The store of the attempt, until its end is announced."""
        self._attempt_failure: _AttemptFailure | None = None
        if in_trial:
            self._start()

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """Return the resources of each rank and each spare process."""
        return [workers.bundle()] * (workers.max_count + workers.spares)

    def _start(self) -> None:
        ranks = range(self._workers.max_count)
        if self._in_trial:
            self._group = get_current_placement_group()
            ranks = ranks[1:]
        else:
            self._group = placement_group(self.bundles(self._workers))
            if not self._group.wait(_PLACEMENT_TIMEOUT_S):
                self.close()
                raise self._no_resources_error()
        self._actors = {rank: self._start_process(rank, rank) for rank in ranks}

    def _no_resources_error(self) -> RunError:
        return RunError(
            f"no free resources for {self._workers.describe('rank')} within"
            f" {_PLACEMENT_TIMEOUT_S} s; reduce `workers`"
        )

    def _start_process(self, rank: int, bundle: int) -> _Process:
        resources = self._workers.bundle()
        cpus, gpus, memory = (resources.pop(name, 0) for name in ("CPU", "GPU", "memory"))
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        needs = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "memory": int(memory) or None,
            "resources": resources or None,
        }
        actor = ray.remote(RankActor).options(**needs, scheduling_strategy=place)
        return _Process(actor.remote(rank, self._workers), bundle)

    def close(self) -> None:
        """End all processes of a run, and free their resources."""
        if self._group and not self._in_trial:
            remove_placement_group(self._group)
            self._group = None
            self._actors = {}
            self._spares = []
            self._cold_spares = []

    def nodes(self) -> set[str]:
        """Return the ids of the nodes that the ranks run on; any thread may call it."""
        group = self._group
        return nodes_of(group) if group else set()

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Begin a run on every rank. Raises RankFailed if a rank cannot begin it; RunError if no
        resources are free."""
        self._end_attempt(AttemptEnd.COMPLETED)
        if self._group is None:
            self._start()
        elif self._attempt_failure:
            self._replace_failed(self._attempt_failure)
        self._folder = RunFolder(assignment.location)
        self._call_all("begin", assignment, self._next_rendezvous(), own_arguments=(resolved,))
        if not self._in_trial:
            self._start_spares(assignment)

    def _next_rendezvous(self) -> Rendezvous:
        """Create the store where the next attempt's ranks meet, in this process, because it
        outlives any rank."""
        if self._server is None:
            self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._attempts += 1
        rendezvous = Rendezvous(ray.util.get_node_ip_address(), self._server.port, self._attempts)
        self._attempt_store = rendezvous.connect(self._server)
        return rendezvous

    def _end_attempt(self, end: AttemptEnd) -> None:
        """Announce the end of the attempt to its ranks, once."""
        store = self._attempt_store
        self._attempt_store = None
        if store is not None:
            store.set(END, end)

    def _start_spares(self, assignment: Assignment) -> None:
        """Start the spare processes that are missing, in the bundles without a process."""
        used = {process.bundle for process in (*self._actors.values(), *self._spares)}
        for bundle in set(range(self._workers.max_count + self._workers.spares)) - used:
            spare = self._start_process(-1, bundle)
            spare.actor.warm_up.remote(assignment.source)
            self._spares.append(spare)
            self._cold_spares.append(spare)

    def _warm_spares(self) -> None:
        """Import into new spare processes the modules that rank 0 imported before its first
        report."""
        if self._cold_spares:
            names = self._actors[0].actor.list_imported_modules.remote()
            for spare in self._cold_spares:
                spare.actor.import_modules.remote(names)
            self._cold_spares = []

    def _replace_failed(self, failure: _AttemptFailure) -> None:
        """Replace the processes of ranks that caused a failure, or do not answer after another
        rank's failure.

        If no rank is known to be the cause, replace all processes.
        """
        calls = failure.calls
        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_ANSWER_TIMEOUT_S)
        unusable = {
            rank
            for call, rank in calls.items()
            if call not in answered or not self._is_usable(call, rank)
        }
        failed = (failure.ranks | unusable) & self._actors.keys() or set(self._actors)
        for rank in failed:
            ray.kill(self._actors[rank].actor)
        from_spares = {rank for rank in sorted(failed) if self._take_spare(rank)}
        new = {
            rank: self._start_process(rank, self._actors[rank].bundle)
            for rank in failed - from_spares
        }
        self._actors |= new
        started = [process.actor.assign_rank.remote(rank) for rank, process in new.items()]
        _, waiting = ray.wait(started, num_returns=len(started), timeout=_PLACEMENT_TIMEOUT_S)
        if waiting:
            raise self._no_resources_error()
        self._attempt_failure = None
        self._show_line(_format_replacement(failed, from_spares, len(self._actors)))

    def _is_usable(self, call: Any, rank: int) -> bool:
        """Return whether a process can be kept: its call succeeded, or may have failed only because
        it lost a peer."""
        try:
            ray.get(call)
        except RayError as error:
            return self._to_failure(rank, error).can_be_secondary
        return True

    def _take_spare(self, rank: int) -> bool:
        """Replace a rank's process with a spare one; return False if no spare is usable."""
        while self._spares:
            spare = self._spares.pop(0)
            try:
                ray.get(spare.actor.assign_rank.remote(rank), timeout=_ANSWER_TIMEOUT_S)
            except RayError:
                ray.kill(spare.actor)
            else:
                self._actors[rank] = spare
                return True
        return False

    def next(self) -> Report | None:
        """Train until the next report; return rank 0's report. Raises RankFailed for the rank that
        failed first."""
        report: Report | None = self._call_all("next")
        self._warm_spares()
        return report

    def save(self) -> str:
        return str(self._call_all("save"))

    def end_run(self, run_index: int) -> None:
        self._call_all("end_run", run_index)

    def end(self) -> None:
        """End the run on every rank. A trial keeps its processes, unless one has failed."""
        self._end_attempt(AttemptEnd.COMPLETED)
        if self._attempt_failure and self._in_trial:
            # Others may be waiting for the failed one. The next run starts new actors.
            for process in self._actors.values():
                ray.kill(process.actor)
            self._group = None
            self._actors = {}
            self._attempt_failure = None
        self._call_all("end")
        self.close()

    def _call_all(self, method: str, *arguments: Any, own_arguments: tuple[Any, ...] = ()) -> Any:
        """Call a method on all ranks concurrently; return rank 0's result.

        The rank in this process also gets `own_arguments`.
        """
        calls = {
            getattr(process.actor, method).remote(*arguments): rank
            for rank, process in self._actors.items()
        }
        results = {}
        failures = {}
        if self._own_rank:
            for call, rank in calls.items():
                call.future().add_done_callback(partial(self._announce_failure, rank))
            try:
                results[0] = getattr(self._own_rank, method)(*arguments, *own_arguments)
            except BaseException as error:
                failures[0] = RankFailed.from_error(0, self._workers.max_count, error)
                failures[0].can_be_secondary |= self._own_rank.lost_peer
        while calls and all(failure.can_be_secondary for failure in failures.values()):
            # Stop waiting once the cause is known: the other ranks may wait for that rank forever
            # in a collective.
            done, _ = ray.wait(list(calls), timeout=_ANSWER_TIMEOUT_S if failures else None)
            if not done:
                break
            rank = calls.pop(done[0])
            try:
                results[rank] = ray.get(done[0])
            except RayError as error:
                failures[rank] = self._to_failure(rank, error)
        if not failures:
            return results[0]
        root_failure = find_root_failure(failures)
        self._end_attempt(_classify_failure(root_failure))
        self._attempt_failure = _AttemptFailure(
            {rank for rank, failure in failures.items() if not failure.can_be_secondary}, calls
        )
        raise root_failure

    def _announce_failure(self, rank: int, call: Future[Any]) -> None:
        """Tell the rank in this process that another rank failed. Called on a Ray thread, which
        must not block."""
        error = call.exception()
        if isinstance(error, RayError):
            self._end_attempt(_classify_failure(self._to_failure(rank, error)))

    def _to_failure(self, rank: int, error: RayError) -> RankFailed:
        # The process died, perhaps killed by Ray's memory monitor.
        if not isinstance(error, RayTaskError):
            return RankFailed.died(rank, self._workers.max_count, self._folder)
        cause = error.cause
        if isinstance(cause, RankFailed):
            return cause
        return RankFailed.from_error(rank, self._workers.max_count, cause)


def _classify_failure(failure: RankFailed) -> AttemptEnd:
    return AttemptEnd.PEER_LOST if failure.can_be_secondary else AttemptEnd.RANK_FAILED


def _format_replacement(failed: Set[int], from_spares: Set[int], count: int) -> str:
    """Return the log line about the replaced processes."""
    ranks = ", ".join(map(str, sorted(failed)))
    replaced = f"process of rank {ranks}" if len(failed) == 1 else f"processes of ranks {ranks}"
    spares = f" ({len(from_spares)} from spares)" if from_spares else ""
    return f"replaced the {replaced}{spares}; kept {count - len(failed)} of {count}"
