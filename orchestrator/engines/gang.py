"""The engine `gang`: one process per rank, without Ray Train. What the gangs of a run and of a
trial have in common."""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang_rank import RankActor
from orchestrator.engines.preemption import find_nodes_of
from orchestrator.engines.rank_calls import RankCalls
from orchestrator.engines.rank_failures import RankFailed, find_root_failure
from orchestrator.engines.rendezvous import AttemptEnd, RendezvousServer
from orchestrator.errors import RunError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report

PLACEMENT_TIMEOUT_S = 3600
"""Seconds to wait for resources; a host may return, or an autoscaler may add one."""


@dataclass(frozen=True)
class PlacedActor:
    """An actor, and the index of its bundle in the placement group."""

    actor: Any
    bundle: int


class Gang(ABC):
    """The ranks of a run: actors in one placement group.

    After a failure, the next attempt keeps the processes of the ranks that only lost a peer, and
    replaces the others.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._group: PlacementGroup | None = None
        self._actors: dict[int, PlacedActor] = {}
        """The ranks in other processes."""
        self._folder: RunFolder | None = None
        self._server = RendezvousServer()
        self._failed_calls: RankCalls | None = None
        """The calls with which the last attempt failed, until its processes are replaced."""

    @staticmethod
    def list_bundles(workers: Workers) -> list[dict[str, float]]:
        """Return the resources of each rank and each spare process."""
        return [workers.bundle] * (workers.max_count + workers.spares)

    @abstractmethod
    def _start(self) -> None:
        """Take or create the placement group, and start the actors."""

    def _make_no_resources_error(self) -> RunError:
        return RunError(
            f"no free resources for {self._workers.describe('rank')} within"
            f" {PLACEMENT_TIMEOUT_S} s; reduce `workers`"
        )

    def _start_process(self, rank: int, bundle: int) -> PlacedActor:
        """Start an actor for a rank in a bundle of the placement group."""
        custom = self._workers.bundle
        cpus = custom.pop("CPU", 0)
        gpus = custom.pop("GPU", 0)
        memory = int(custom.pop("memory", 0))
        actor = ray.remote(RankActor).options(
            num_cpus=cpus,
            num_gpus=gpus,
            memory=memory or None,
            resources=custom or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            ),
        )
        return PlacedActor(actor.remote(rank, self._workers), bundle)

    def find_nodes(self) -> set[str]:
        """Return the ids of the nodes that the ranks run on; any thread may call it."""
        group = self._group
        return find_nodes_of(group) if group else set()

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Begin a run on every rank. Raises RankFailed if a rank cannot begin it; RunError if no
        resources are free."""
        self._server.end_attempt(AttemptEnd.COMPLETED)
        if self._group is None:
            self._start()
        elif self._failed_calls:
            self._replace_failed(self._failed_calls)
        self._folder = RunFolder(assignment.location)
        self._call_all("begin", assignment, self._server.begin_attempt())

    def _replace_failed(self, calls: RankCalls) -> None:
        """Replace the processes that cannot be kept after calls that failed; all of them if none is
        known to be the cause."""
        unusable = calls.find_unusable() & self._actors.keys()
        failed = unusable or set(self._actors)
        for rank in failed:
            ray.kill(self._actors[rank].actor)
        self._replace(failed)
        self._failed_calls = None

    def _replace(self, ranks: Set[int]) -> None:
        """Start new processes for ranks whose processes have ended."""
        new = {rank: self._start_process(rank, self._actors[rank].bundle) for rank in ranks}
        self._actors |= new
        started = [process.actor.assign_rank.remote(rank) for rank, process in new.items()]
        _, waiting = ray.wait(started, num_returns=len(started), timeout=PLACEMENT_TIMEOUT_S)
        if waiting:
            raise self._make_no_resources_error()

    def next(self) -> Report | None:
        """Train until the next report; return rank 0's report. Raises RankFailed for the rank that
        failed first."""
        report: Report | None = self._call_all("next")
        return report

    def save(self) -> str:
        return str(self._call_all("save"))

    def end_run(self, run_index: int) -> None:
        self._call_all("end_run", run_index)

    def end(self) -> None:
        """End the run on every rank."""
        self._server.end_attempt(AttemptEnd.COMPLETED)
        self._call_all("end")

    def _call_all(self, method: str, *arguments: Any) -> Any:
        """Call a method on all ranks concurrently; return rank 0's result. Raises the failure that
        caused the others."""
        return self._collect(self._call_actors(method, *arguments))

    def _call_actors(self, method: str, *arguments: Any) -> RankCalls:
        """Call a method on the ranks in other processes."""
        pending = {
            getattr(process.actor, method).remote(*arguments): rank
            for rank, process in self._actors.items()
        }
        return RankCalls(pending, self._to_failure)

    def _collect(self, calls: RankCalls) -> Any:
        """Wait for the answers, and return rank 0's result. If a rank failed, end the attempt and
        raise the failure that caused the others."""
        calls.collect()
        if not calls.failures:
            return calls.results[0]

        failure = find_root_failure(calls.failures)
        self._server.end_attempt(classify_failure(failure))
        self._failed_calls = calls
        raise failure

    def _to_failure(self, rank: int, error: RayError) -> RankFailed:
        # The process died, perhaps killed by Ray's memory monitor.
        if not isinstance(error, RayTaskError):
            return RankFailed.died(rank, self._workers.max_count, self._folder)
        cause = error.cause
        if isinstance(cause, RankFailed):
            return cause
        return RankFailed.from_error(rank, self._workers.max_count, cause)


def classify_failure(failure: RankFailed) -> AttemptEnd:
    """Return the end of an attempt in which this failure caused the others."""
    return AttemptEnd.PEER_LOST if failure.can_be_secondary else AttemptEnd.RANK_FAILED
