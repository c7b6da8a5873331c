"""The ledger: what hooks and saving cost, written with the rows."""

from __future__ import annotations

from typing import Any

from hooks.plan import Plan
from hooks.state import State
from orchestrator.loop.state.cursor import TrainingCursor
from orchestrator.stats.write.recorder import Recorder


class Ledger:
    """Takes what was spent outside an iteration, and puts it on disk beside the rows that there are. Worker process."""

    def __init__(self, recorder: Recorder, plan: Plan, state: State, cursor: TrainingCursor) -> None:
        self._recorder, self._plan, self._state, self._cursor = recorder, plan, state, cursor
        self._own: dict[str, list[float]] = {}

    def charge(self, event: str, seconds: float) -> None:
        """Adds what the loop itself took: `save` is what a checkpoint kept training waiting, `write` what went on
        beside it."""
        self._own.setdefault(event, []).append(seconds)

    def flush(self) -> None:
        """Puts on disk the rows that there are, and what was spent since the last time."""
        self._record()
        self._recorder.sync()

    def close(self) -> None:
        """Flushes everything, and ends the files."""
        self._record()
        self._recorder.close()

    def _record(self) -> None:
        place = {"epoch": self._cursor.epoch_label, "iteration": self._state.iteration, "step": self._state.step}
        self._recorder.append_costs([{**place, **cost} for cost in self._drain()])

    def _drain(self) -> list[dict[str, Any]]:
        """Rows of hook, event, calls, seconds: of each hook at each event, and of the loop's own saving."""
        charged, self._own = self._own, {}
        own = [
            {"hook": "(loop)", "event": event, "calls": len(took), "seconds": sum(took)}
            for event, took in charged.items()
        ]
        return self._plan.drain_costs() + own
