"""A shared session: runs that share one training, as one session on one rank."""

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
from orchestrator.loop.shared_training import TURN
from orchestrator.loop.world import World

_log = logging.getLogger("hookyard")


class SharedSession:
    """The session of an assignment and of its followers: each trains and reports in turn, and a report says of which it
    is.

    Training goes on until the last of them is over. Where any fails, all end, and a note of the error says whose turn
    it was. In every worker process.
    """

    def __init__(
        self, assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
    ) -> None:
        self._world = world
        self.sessions = [
            Session(assignment, world, resolved, **options),
            *(Session(follower, world, **options) for follower in assignment.followers),
        ]
        self._dropped: set[int] = set()

    def reports(self) -> Generator[Report, None, None]:
        """The reports of all, those of one round of training after the other."""
        self._go_on_together()
        leader, *followers = self.sessions
        leader.lead(followers)
        everybody = [session.reports() for session in self.sessions]
        under_way, turn = set(range(len(everybody))), 0
        try:
            while under_way:
                for turn in sorted(under_way):
                    if (yield from self._turn(turn, everybody[turn])):
                        continue
                    under_way.remove(turn)
                    self.sessions[turn].is_over()
                    if turn:  # the leader's own still has what trains
                        everybody[turn].close()
        except Exception as error:  # whatever it is, it goes on with a word of whose turn it was
            error.add_note(f"{TURN}{member_of(error, turn)}")
            raise
        finally:
            for reports in reversed(everybody):
                reports.close()

    def _turn(self, turn: int, reports: Generator[Report, None, None]) -> Generator[Report, None, bool]:
        """The report of a run in its turn, and where it stops that of its test, before others train on; whether it goes
        on after it."""
        for report in reports:
            yield replace(report, member=turn)
            if report.final or turn in self._dropped:
                return False
            if not report.stopped:
                return True
        return False

    def drop(self, member: int) -> None:
        """Ends a run with the report that it has just made."""
        self._dropped.add(member)

    def save(self) -> str:
        """Never asked for: trials that share a training are not paused, as the schedulers that pause trials exclude
        shared training."""
        raise NotImplementedError("trials that share a training are not paused")

    def _go_on_together(self) -> None:
        """Has all of them go on from where all have a checkpoint, the newest such; without one they begin anew."""
        stores = [session.prepare() for session in self.sessions]
        newest = [store.latest(ranks=self._world) for store in stores]
        places = {name and _place(store, name) for store, name in zip(stores, newest, strict=True)}
        if len(places) == 1:
            return
        common: list[str] | None = self._world.broadcast(partial(_newest_in_common, stores))
        if common is None and self._world.is_master:
            names = ", ".join(session.folder.name for session in self.sessions)
            _log.warning(
                "no moment of the training that %s share has a checkpoint of each of them: it begins anew, without"
                " those that there are",
                names,
            )
        for number, (session, store) in enumerate(zip(self.sessions, stores, strict=True)):
            if common is None:
                self._world.broadcast(store.clear)
            else:
                session.assignment = replace(session.assignment, checkpoint=store.path(common[number]))


def member_of(error: BaseException, otherwise: int = 0) -> int:
    """Of which of the runs a failure is, as a note of it says, or of what caused it."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(TURN)]
    if notes:
        return int(notes[0].removeprefix(TURN))
    return member_of(error.__cause__, otherwise) if error.__cause__ else otherwise


def session_of(
    assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
) -> Session | SharedSession:
    """What trains an assignment on one rank."""
    return (SharedSession if assignment.followers else Session)(assignment, world, resolved, **options)


def _place(store: CheckpointStore, name: str) -> tuple[int, Stage]:
    position = store.position(name)
    return position.iteration, position.stage


def _newest_in_common(stores: Sequence[CheckpointStore]) -> list[str] | None:
    """The newest checkpoint of each store that is of a place of which all have one."""
    there = [{_place(store, name): name for name in store.names()} for store in stores]
    places = set.intersection(*map(set, there))
    return [names[max(places)] for names in there] if places else None
