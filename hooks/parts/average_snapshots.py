"""Snapshots: checkpoints that a hook keeps, evenly over the run, however long it gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hooks.interval import Interval
from hooks.state import State


class Snapshots:
    """Asks for checkpoints at an interval, and keeps at most so many of them. Where there would be more, it gives up
    every second, and from then on makes only every second. All ranks decide alike, from counters alone; what is kept is
    the master's word."""

    def __init__(self, interval: Interval, most: int) -> None:
        self.interval, self.most = interval, most
        self._numbers: dict[str, int] = {}
        """Checkpoint to its number in the interval."""
        self._asked: int | None = None
        """Number of the checkpoint that is asked for and not yet begun."""
        self._saving: int | None = None
        """Number of the checkpoint being written; None where nobody asked for it as a snapshot."""

    def ask(self, state: State, owner: str) -> None:
        """Asks for a checkpoint where a snapshot is due."""
        done = state.epoch if self.interval.unit == "epochs" else state.step
        if self.interval.due(state) and done // self.interval.count % self._apart(done) == 0:
            self._asked = done // self.interval.count
            state.request_checkpoint(f"snapshot of {owner}")

    def take(self) -> None:
        """Bind the request to the checkpoint that is saved now. A background write may end after the next request."""
        self._saving, self._asked = self._asked, None

    def keep(self, state: State, owner: str, name: str) -> None:
        """Keep the stored checkpoint if it was asked for, and give up the snapshots that are too many with it."""
        if self._saving is None:
            return
        apart = self._apart(self._saving * self.interval.count)
        numbers = {**self._numbers, name: self._saving}
        self._numbers = {snapshot: number for snapshot, number in numbers.items() if number % apart == 0}
        self._saving = None
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
        """How many of the interval's places lie between two snapshots after so many epochs or steps."""
        apart = 1
        while done // self.interval.count // apart > self.most:
            apart *= 2
        return apart
