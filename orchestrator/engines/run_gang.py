"""The gang of a single run, with spare processes."""

from collections.abc import Callable, Set
from dataclasses import dataclass

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang import PLACEMENT_TIMEOUT_S, Gang, PlacedActor
from orchestrator.engines.rank_calls import ANSWER_TIMEOUT_S
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report

_NO_RANK = -1
"""Rank of a spare process until it replaces another."""


@dataclass
class Spare:
    """A spare process."""

    process: PlacedActor
    is_warm: bool = False
    """True once it imports the modules that rank 0 has imported."""


class RunGang(Gang):
    """The ranks of a single run: all are actors, in a placement group that the gang creates.

    After a failure, the spare processes of `workers.spares` replace lost ones first. Call `close`
    at the end of a run.
    """

    def __init__(
        self, workers: Workers, *, show_line: Callable[[str], None] = lambda line: None
    ) -> None:
        super().__init__(workers)
        self._show_line = show_line
        self._spares: list[Spare] = []

    def _start(self) -> None:
        self._group = placement_group(self.list_bundles(self._workers))
        if not self._group.wait(PLACEMENT_TIMEOUT_S):
            self.close()
            raise self._make_no_resources_error()
        self._actors = {
            rank: self._start_process(rank, rank) for rank in range(self._workers.max_count)
        }

    def close(self) -> None:
        """End all processes, and free their resources."""
        if self._group:
            remove_placement_group(self._group)
            self._group = None
            self._actors = {}
            self._failed_calls = None
            self._spares = []

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        super().begin(assignment, resolved)
        self._start_spares(assignment)

    def next(self) -> Report | None:
        report = super().next()
        self._warm_spares()
        return report

    def end(self) -> None:
        try:
            super().end()
        finally:
            self.close()

    def _start_spares(self, assignment: Assignment) -> None:
        """Start the spare processes that are missing, in the bundles without a process."""
        processes = [*self._actors.values(), *(spare.process for spare in self._spares)]
        used = {process.bundle for process in processes}
        for bundle in set(range(self._workers.max_count + self._workers.spares)) - used:
            process = self._start_process(_NO_RANK, bundle)
            process.actor.warm_up.remote(assignment.source)
            self._spares.append(Spare(process))

    def _warm_spares(self) -> None:
        """Import into new spare processes the modules that rank 0 imported before its first
        report."""
        cold = [spare for spare in self._spares if not spare.is_warm]
        if not cold:
            return
        names = self._actors[0].actor.list_imported_modules.remote()
        for spare in cold:
            spare.process.actor.import_modules.remote(names)
            spare.is_warm = True

    def _replace(self, ranks: Set[int]) -> None:
        from_spares = {rank for rank in sorted(ranks) if self._take_spare(rank)}
        super()._replace(ranks - from_spares)
        self._show_line(_format_replacement(ranks, from_spares, len(self._actors)))

    def _take_spare(self, rank: int) -> bool:
        """Replace a rank's process with a spare one; return False if no spare is usable."""
        while self._spares:
            process = self._spares.pop(0).process
            try:
                ray.get(process.actor.assign_rank.remote(rank), timeout=ANSWER_TIMEOUT_S)
            except RayError:
                ray.kill(process.actor)
            else:
                self._actors[rank] = process
                return True
        return False


def _format_replacement(failed: Set[int], from_spares: Set[int], count: int) -> str:
    """Return the log line about the replaced processes."""
    ranks = ", ".join(map(str, sorted(failed)))
    replaced = f"process of rank {ranks}" if len(failed) == 1 else f"processes of ranks {ranks}"
    spares = f" ({len(from_spares)} from spares)" if from_spares else ""
    return f"replaced the {replaced}{spares}; kept {count - len(failed)} of {count}"
