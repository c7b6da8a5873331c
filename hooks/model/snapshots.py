"""Checkpoints that a hook keeps as snapshots of its averages."""

from collections.abc import Mapping
from typing import Any

from hooks.errors import SettingError
from hooks.interval import Interval
from hooks.state import State


class Snapshots:
    """At most `max_count` checkpoints at an interval. If there were more, every second is dropped
    and the interval doubles. All ranks make the same decisions, from counters."""

    def __init__(self, interval: Interval, max_count: int) -> None:
        self.interval = interval
        self.max_count = max_count
        self._numbers: dict[str, int] = {}
        """Number of each snapshot, by the checkpoint's name."""
        self._numbered_by = interval
        """Interval that these numbers count."""
        self._requested: int | None = None
        """Number of the requested snapshot whose save has not started."""
        self._saving: int | None = None
        """Number of the snapshot being written; None if the checkpoint is not a snapshot."""

    def request_if_due(self, state: State, owner: str) -> None:
        if not self.interval.due(state):
            return
        done = state.epoch if self.interval.unit == "epochs" else state.step
        number = done // self.interval.count
        if number % self._stride(number) == 0:
            self._requested = number
            state.request_checkpoint(f"snapshot of {owner}")

    def begin_save(self) -> None:
        """Assign the request to the current checkpoint; a background write may end after the next
        request."""
        self._saving = self._requested
        self._requested = None

    def finish_save(self, state: State, owner: str, name: str) -> None:
        """Keep the stored checkpoint if it is a snapshot, and drop those that are now too many."""
        if self._saving is not None:
            self._retain(state, owner, {**self._numbers, name: self._saving})
            self._saving = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save; the checkpoint's own name is not known yet."""
        return {
            "numbers": self._numbers,
            "interval": str(self._numbered_by),
            "requested": self._requested,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the snapshots; raises SettingError if others follow at another interval."""
        self._numbers = state["numbers"]
        self._requested = state["requested"]
        if not self._numbers and self._requested is None:
            return
        self._numbered_by = Interval.parse(state["interval"])
        if self.interval.count and self.interval != self._numbered_by:
            raise SettingError(
                f"snapshots: must be {self._numbered_by}, the interval of those in the checkpoint,"
                f" got {self.interval}; set it back, or set 0 to make no more"
            )

    def restore(self, state: State, owner: str, name: str) -> None:
        """Continue from the checkpoint `name`: drop later snapshots, and the names of deleted
        ones."""
        known = dict(self._numbers)
        if self._requested is not None:
            known[name] = self._requested
            self._requested = None

        stored = state.checkpoints.list_names() if state.checkpoints else []
        numbers = {snapshot: known[snapshot] for snapshot in known if snapshot in stored}
        self._retain(state, owner, numbers)

    def _retain(self, state: State, owner: str, numbers: Mapping[str, int]) -> None:
        stride = self._stride(max(numbers.values(), default=0))
        self._numbers = {
            snapshot: number for snapshot, number in numbers.items() if number % stride == 0
        }
        if state.checkpoints is not None:
            state.checkpoints.retain(owner, list(self._numbers))

    def _stride(self, number: int) -> int:
        """Return the distance of two snapshots in intervals, after a number of them."""
        stride = 1
        while number // stride > self.max_count:
            stride *= 2
        return stride
