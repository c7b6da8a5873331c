"""The engine `gang`: one process per rank, without Ray Train. What the gangs of a run and of a
trial have in common."""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang_rank import RankActor
from orchestrator.engines.preemption import find_nodes_of
from orchestrator.engines.rank_failures import RankFailed, find_root_failure
from orchestrator.engines.rendezvous import AttemptEnd, RendezvousServer
from orchestrator.errors import RunError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report

ANSWER_TIMEOUT_S = 5
"""Seconds to wait after a rank fails: for the rank that caused it, for the other ranks, and for a
spare process."""

PLACEMENT_TIMEOUT_S = 3600
"""Seconds to wait for resources; a host may return, or an autoscaler may add one."""


@dataclass(frozen=True)
class PlacedActor:
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


@dataclass(frozen=True)
class Answers:
    """Answers of the ranks: results or errors."""

    results: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, RankFailed] = field(default_factory=dict)


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
        self._attempt_failure: _AttemptFailure | None = None

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
        resources = self._workers.bundle
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        needs = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "memory": int(resources.pop("memory", 0)) or None,
            "resources": resources or None,
        }
        actor = ray.remote(RankActor).options(**needs, scheduling_strategy=place)
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
        elif self._attempt_failure:
            self._replace_failed(self._attempt_failure)
        self._folder = RunFolder(assignment.location)
        self._call_all("begin", assignment, self._server.begin_attempt())

    def _replace_failed(self, failure: _AttemptFailure) -> None:
        failed = self._find_failed_processes(failure)
        for rank in failed:
            ray.kill(self._actors[rank].actor)
        self._replace(failed)
        self._attempt_failure = None

    def _find_failed_processes(self, failure: _AttemptFailure) -> Set[int]:
        """Return the ranks that caused a failure, or do not answer after another rank's failure;
        all ranks if none is known to be the cause."""
        calls = failure.calls
        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
        unusable = {
            rank
            for call, rank in calls.items()
            if call not in answered or not self._is_usable(call, rank)
        }
        return (failure.ranks | unusable) & self._actors.keys() or set(self._actors)

    def _replace(self, ranks: Set[int]) -> None:
        """Start new processes for ranks whose processes have ended."""
        new = {rank: self._start_process(rank, self._actors[rank].bundle) for rank in ranks}
        self._actors |= new
        started = [process.actor.assign_rank.remote(rank) for rank, process in new.items()]
        _, waiting = ray.wait(started, num_returns=len(started), timeout=PLACEMENT_TIMEOUT_S)
        if waiting:
            raise self._make_no_resources_error()

    def _is_usable(self, call: Any, rank: int) -> bool:
        """Return whether a process can be kept: its call succeeded, or may have failed only because
        it lost a peer."""
        try:
            ray.get(call)
        except RayError as error:
            return self._to_failure(rank, error).can_be_secondary
        return True

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
        """Call a method on all ranks concurrently; return rank 0's result."""
        return self._collect(self._call_actors(method, *arguments), Answers())

    def _call_actors(self, method: str, *arguments: Any) -> dict[Any, int]:
        """Call a method on the ranks in other processes; return the rank of each call."""
        return {
            getattr(process.actor, method).remote(*arguments): rank
            for rank, process in self._actors.items()
        }

    def _collect(self, calls: dict[Any, int], answers: Answers) -> Any:
        """Add the results of calls to the answers; return rank 0's result.

        Raises the failure that caused the others. Stops waiting once it is known, because the
        other ranks may wait for that rank forever in a collective.
        """
        failures = answers.failures
        while calls and all(failure.can_be_secondary for failure in failures.values()):
            done, _ = ray.wait(list(calls), timeout=ANSWER_TIMEOUT_S if failures else None)
            if not done:
                break
            rank = calls.pop(done[0])
            try:
                answers.results[rank] = ray.get(done[0])
            except RayError as error:
                failures[rank] = self._to_failure(rank, error)
        if not failures:
            return answers.results[0]
        root_failure = find_root_failure(failures)
        self._server.end_attempt(classify_failure(root_failure))
        causes = {rank for rank, failure in failures.items() if not failure.can_be_secondary}
        self._attempt_failure = _AttemptFailure(causes, calls)
        raise root_failure

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
