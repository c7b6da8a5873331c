"""A session of several runs that share one training, in one worker process."""

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate
from typing import Any

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.report import Report
from orchestrator.loop.shared_training import RUN_NOTE_PREFIX
from orchestrator.loop.world import World

_log = logging.getLogger("hookyard")


class SharedSession:
    """The sessions of an assignment and its followers, which train and report in turn. Used in
    workers.

    Training continues until the last run ends. If one run fails, all end, and a note on the error
    names it.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        **options: Any,
    ) -> None:
        self._world = world
        self.sessions = [
            Session(assignment, world, resolved, **options),
            *(Session(follower, world, **options) for follower in assignment.followers),
        ]
        self._ended_runs: set[int] = set()

    def reports(self) -> Generator[Report, None, None]:
        """Train the runs from their checkpoints; yield their reports in turn."""
        self._choose_checkpoints()
        leader, *followers = self.sessions
        leader.followers = followers
        reports = [session.reports() for session in self.sessions]
        active = set(range(len(reports)))
        run_index = 0
        try:
            while active:
                for run_index in sorted(active):
                    continues = yield from self._turn(run_index, reports[run_index])
                    if continues:
                        continue
                    active.remove(run_index)
                    self.sessions[run_index].write_end()
                    # The leader trains on for the others.
                    if run_index:
                        reports[run_index].close()
        except Exception as error:
            error.add_note(f"{RUN_NOTE_PREFIX}{find_failed_run(error, run_index)}")
            raise
        finally:
            for session, own in zip(reversed(self.sessions), reversed(reports), strict=True):
                if getgeneratorstate(own) == GEN_CREATED:
                    session.close_loop()
                own.close()

    def _turn(
        self, run_index: int, reports: Generator[Report, None, None]
    ) -> Generator[Report, None, bool]:
        """Yield the next report of a run, and its test report if it stops; return whether the run
        continues."""
        for report in reports:
            yield replace(report, run_index=run_index)
            if report.is_final or run_index in self._ended_runs:
                return False
            if not report.stopped:
                return True
        return False

    def end_run(self, run_index: int) -> None:
        """End a run at its last report."""
        self._ended_runs.add(run_index)

    def save(self) -> str:
        """Raise: schedulers that pause trials exclude shared training."""
        raise NotImplementedError("trials that share a training run are not paused")

    def _choose_checkpoints(self) -> None:
        """Resume all runs from the newest position where all have a checkpoint, or start all from
        scratch."""
        stores = [session.prepare() for session in self.sessions]
        if self._are_at_same_position(stores):
            return
        common: list[str] | None = self._world.broadcast(partial(_find_newest_common, stores))
        if common is None:
            self._start_from_scratch(stores)
            return
        for session, store, name in zip(self.sessions, stores, common, strict=True):
            session.assignment = replace(session.assignment, checkpoint=store.get_path(name))

    def _are_at_same_position(self, stores: Sequence[CheckpointStore]) -> bool:
        """Return whether the newest checkpoints of all runs have the same position, or none has
        one; collective."""
        newest = [store.find_latest(group=self._world) for store in stores]
        positions = set()
        for name, store in zip(newest, stores, strict=True):
            positions.add(store.read_position(name) if name else None)
        return len(positions) == 1

    def _start_from_scratch(self, stores: Sequence[CheckpointStore]) -> None:
        """Delete all checkpoints; collective."""
        if self._world.is_master:
            names = ", ".join(session.folder.name for session in self.sessions)
            _log.warning(
                "%s share a training run but have no common checkpoint; they start from scratch",
                names,
            )
        for store in stores:
            self._world.broadcast(store.clear)


def make_session(
    assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
) -> Session | SharedSession:
    """Return the session of an assignment, which has followers if runs share its training."""
    session = SharedSession if assignment.followers else Session
    return session(assignment, world, resolved, **options)


def find_failed_run(error: BaseException, otherwise: int = 0) -> int:
    """Return the index of the run that failed, from a note on the error or on its cause."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(RUN_NOTE_PREFIX):
            return int(note.removeprefix(RUN_NOTE_PREFIX))
    return find_failed_run(error.__cause__, otherwise) if error.__cause__ else otherwise


def _find_newest_common(stores: Sequence[CheckpointStore]) -> list[str] | None:
    """Return each store's checkpoint at the newest position that all have in common; None if there
    is none."""
    by_position = [
        {store.read_position(name): name for name in store.list_names()} for store in stores
    ]
    common = set.intersection(*map(set, by_position))
    if not common:
        return None
    newest = max(common)
    return [names[newest] for names in by_position]
