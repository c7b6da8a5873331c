"""Snapshots: checkpoints that a hook keeps, evenly over the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hooks.interval import Interval
from hooks.state import State


class Snapshots:
    """Checkpoints at an interval, at most `most` of them. If there were more, every second is dropped and the interval
    doubles. All ranks make the same decisions, from counters."""

    def __init__(self, interval: Interval, most: int) -> None:
        self.interval, self.most = interval, most
        self._numbers: dict[str, int] = {}
        """Number of each snapshot in the interval, by the checkpoint's name."""
        self._requested: int | None = None
        """Number of the requested snapshot whose save has not started."""
        self._saving: int | None = None
        """Number of the snapshot being written; None if the checkpoint is not a snapshot."""

    def request_if_due(self, state: State, owner: str) -> None:
        done = state.epoch if self.interval.unit == "epochs" else state.step
        if self.interval.due(state) and done // self.interval.count % self._stride(done) == 0:
            self._requested = done // self.interval.count
            state.request_checkpoint(f"snapshot of {owner}")

    def begin_save(self) -> None:
        """Assign the request to the current checkpoint; a background write may end after the next request."""
        self._saving, self._requested = self._requested, None

    def finish_save(self, state: State, owner: str, name: str) -> None:
        """Keep the stored checkpoint if it is a snapshot, and drop those that are now too many."""
        if self._saving is None:
            return
        stride = self._stride(self._saving * self.interval.count)
        numbers = {**self._numbers, name: self._saving}
        self._numbers = {snapshot: number for snapshot, number in numbers.items() if number % stride == 0}
        self._saving = None
        self._retain(state, owner)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save; the checkpoint's own name is not known yet."""
        return {"numbers": dict(self._numbers), "requested": self._requested}

    def restore(self, state: State, owner: str, record: Mapping[str, Any], name: str) -> None:
        """Continue from the checkpoint `name`: drop later snapshots, and the names of deleted ones."""
        kept = {**record["numbers"], **({name: record["requested"]} if record["requested"] is not None else {})}
        stored = set(state.checkpoints.names()) if state.checkpoints else set()
        self._numbers = {snapshot: number for snapshot, number in kept.items() if snapshot in stored}
        self._retain(state, owner)

    def _retain(self, state: State, owner: str) -> None:
        if state.checkpoints is not None:
            state.checkpoints.retain(owner, [*self._numbers])

    def _stride(self, done: int) -> int:
        """Return the distance of two snapshots in intervals, after `done` epochs or steps."""
        stride = 1
        while done // self.interval.count // stride > self.most:
            stride *= 2
        return stride
