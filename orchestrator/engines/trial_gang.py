"""The gang of the trials of a sweep, which reuse its processes."""

from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group

from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang import Gang, classify_failure
from orchestrator.engines.gang_rank import GangRank
from orchestrator.engines.rank_calls import RankCalls
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers


class TrialGang(Gang):
    """The ranks of a trial: the trial's process is rank 0, and the others are actors in the trial's
    placement group.

    The next trial reuses the processes, unless one has failed.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__(workers)
        self._own_rank = GangRank(0, workers)
        self._start()

    def _start(self) -> None:
        self._group = get_current_placement_group()
        self._actors = {
            rank: self._start_process(rank, rank) for rank in range(1, self._workers.max_count)
        }

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        self._own_rank.resolved = resolved
        super().begin(assignment, resolved)

    def end(self) -> None:
        if self._failed_calls:
            self._end_actors()
        super().end()

    def _end_actors(self) -> None:
        """End the other ranks, which may be waiting for the failed one; the next run starts new
        actors."""
        for process in self._actors.values():
            ray.kill(process.actor)
        self._group = None
        self._actors = {}
        self._failed_calls = None

    def _call_all(self, method: str, *arguments: Any) -> Any:
        calls = self._call_actors(method, *arguments)
        calls.when_done(self._announce_failure)
        self._call_own_rank(calls, method, *arguments)
        return self._collect(calls)

    def _call_own_rank(self, calls: RankCalls, method: str, *arguments: Any) -> None:
        """Call a method on the rank in this process, and add its answer to those of the others."""
        try:
            calls.results[0] = getattr(self._own_rank, method)(*arguments)
        except BaseException as error:
            failure = RankFailed.from_error(0, self._workers.max_count, error)
            failure.can_be_secondary = failure.can_be_secondary or self._own_rank.lost_peer
            calls.failures[0] = failure

    def _announce_failure(self, rank: int, call: Future[Any]) -> None:
        """Tell the rank in this process that another rank failed. Called on a Ray thread, which
        must not block."""
        error = call.exception()
        if isinstance(error, RayError):
            self._server.end_attempt(classify_failure(self._to_failure(rank, error)))
