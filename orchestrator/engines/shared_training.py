"""Runs that share one training run, as one session on one rank."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.checkpoint.position import Stage
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.session import Assignment, Session
from orchestrator.loop.report import Report
from orchestrator.loop.shared_training import RUN_NOTE_PREFIX
from orchestrator.loop.world import World

_log = logging.getLogger("hookyard")


class SharedSession:
    """The sessions of an assignment and its followers, which train and report in turn. Used in workers.

    Training continues until the last run ends. If one run fails, all end, and a note on the error names it.
    """

    def __init__(
        self, assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
    ) -> None:
        self._world = world
        self.sessions = [
            Session(assignment, world, resolved, **options),
            *(Session(follower, world, **options) for follower in assignment.followers),
        ]
        self._ended_runs: set[int] = set()

    def reports(self) -> Generator[Report, None, None]:
        self._choose_checkpoints()
        leader, *followers = self.sessions
        leader.followers = followers
        reports = [session.reports() for session in self.sessions]
        active, run_index = set(range(len(reports))), 0
        try:
            while active:
                for run_index in sorted(active):
                    if (yield from self._turn(run_index, reports[run_index])):
                        continue
                    active.remove(run_index)
                    self.sessions[run_index].write_end()
                    if run_index:  # the leader is still training
                        reports[run_index].close()
        except Exception as error:
            error.add_note(f"{RUN_NOTE_PREFIX}{find_failed_run(error, run_index)}")
            raise
        finally:
            for own in reversed(reports):
                own.close()

    def _turn(self, run_index: int, reports: Generator[Report, None, None]) -> Generator[Report, None, bool]:
        """Yield the next report of a run, and its test report if it stops; return whether the run continues."""
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
        """Resume all runs from the newest position where all have a checkpoint, or start all from scratch."""
        stores = [session.prepare() for session in self.sessions]
        newest = [store.latest(group=self._world) for store in stores]
        positions = {name and _find_position(store, name) for store, name in zip(stores, newest, strict=True)}
        if len(positions) == 1:
            return
        common: list[str] | None = self._world.broadcast(partial(_find_newest_common, stores))
        if common is None and self._world.is_master:
            names = ", ".join(session.folder.name for session in self.sessions)
            _log.warning(
                "%s share a training run but no checkpoints of the same place; they start from scratch, without their"
                " checkpoints",
                names,
            )
        for number, (session, store) in enumerate(zip(self.sessions, stores, strict=True)):
            if common is None:
                self._world.broadcast(store.clear)
            else:
                session.assignment = replace(session.assignment, checkpoint=store.path(common[number]))


def find_failed_run(error: BaseException, otherwise: int = 0) -> int:
    """Return the index of the run that failed, from a note on the error or on its cause."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(RUN_NOTE_PREFIX)]
    if notes:
        return int(notes[0].removeprefix(RUN_NOTE_PREFIX))
    return find_failed_run(error.__cause__, otherwise) if error.__cause__ else otherwise


def session_of(
    assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
) -> Session | SharedSession:
    return (SharedSession if assignment.followers else Session)(assignment, world, resolved, **options)


def _find_position(store: CheckpointStore, name: str) -> tuple[int, Stage]:
    position = store.position(name)
    return position.iteration, position.stage


def _find_newest_common(stores: Sequence[CheckpointStore]) -> list[str] | None:
    """Return each store's checkpoint at the newest position that all have in common; None if there is none."""
    by_position = [{_find_position(store, name): name for name in store.names()} for store in stores]
    common = set.intersection(*map(set, by_position))
    return [names[max(common)] for names in by_position] if common else None
