"""Snapshots: checkpoints that a hook keeps, evenly over the run, however long it gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hooks.rhythm import Rhythm
from hooks.state import State


class Snapshots:
    """Asks for checkpoints at a rhythm, and keeps at most so many of them: where there would be more, every second is
    given up, and from then on only every second is made. All ranks decide alike, from counters alone; what is kept is
    the master's word."""

    def __init__(self, rhythm: Rhythm, most: int) -> None:
        self.rhythm, self.most = rhythm, most
        self._numbers: dict[str, int] = {}
        """Checkpoint to its number in the rhythm."""
        self._asked: int | None = None
        """The number of the checkpoint that is asked for."""

    def ask(self, state: State, owner: str) -> None:
        """Asks for a checkpoint where a snapshot is due."""
        done = state.epoch if self.rhythm.unit == "epochs" else state.step
        if self.rhythm.due(state) and done // self.rhythm.count % self._apart(done) == 0:
            self._asked = done // self.rhythm.count
            state.request_checkpoint(f"snapshot of {owner}")

    def keep(self, state: State, owner: str, name: str) -> None:
        """Keeps the checkpoint that was asked for, now that it is stored, and gives up what are too many with it."""
        if self._asked is None:
            return
        apart = self._apart(self._asked * self.rhythm.count)
        self._numbers = {
            one: number for one, number in {**self._numbers, name: self._asked}.items() if number % apart == 0
        }
        self._asked = None
        self._retain(state, owner)

    def record(self) -> dict[str, Any]:
        """For a checkpoint, whose own name is not known yet."""
        return {"numbers": dict(self._numbers), "asked": self._asked}

    def restore(self, state: State, owner: str, record: Mapping[str, Any], name: str) -> None:
        """Goes on from the checkpoint `name`: those that came after it are given up, as are those that are gone."""
        kept = {**record["numbers"], **({name: record["asked"]} if record["asked"] is not None else {})}
        there = set(state.checkpoints.names()) if state.checkpoints else set()
        self._numbers = {one: number for one, number in kept.items() if one in there}
        self._retain(state, owner)

    def _retain(self, state: State, owner: str) -> None:
        if state.checkpoints is not None:
            state.checkpoints.retain(owner, [*self._numbers])

    def _apart(self, done: int) -> int:
        """How many of the rhythm's places lie between two snapshots after so many epochs or steps."""
        apart = 1
        while done // self.rhythm.count // apart > self.most:
            apart *= 2
        return apart
