"""Recording of the costs of hooks and of saving."""

from __future__ import annotations

from hooks.plan import Plan
from hooks.state import State
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.stats.write.recorder import Recorder


class CostRecorder:
    """Recorder of the costs of hooks and of saving, which it writes together with the rows."""

    def __init__(self, recorder: Recorder, plan: Plan, state: State, cursor: RunCursor) -> None:
        self._recorder, self._plan, self._state, self._cursor = recorder, plan, state, cursor
        self._charges: dict[str, list[float]] = {}

    def charge(self, event: str, seconds: float) -> None:
        """Add a cost of the loop: `save`, for which training waited, or `write`, which ran in the background."""
        self._charges.setdefault(event, []).append(seconds)

    def flush(self, *, is_saving: bool = False) -> None:
        """Write the rows so far, and the costs since the last flush; before a checkpoint if `is_saving`."""
        self._record(self._cursor.stage + (not is_saving))
        self._recorder.sync()

    def close(self) -> None:
        """Flush everything and close the files."""
        self._record(self._cursor.stage + 1)
        self._recorder.close()

    def _record(self, stage: int) -> None:
        """Record costs that precede a checkpoint at this iteration and `stage` or a later one."""
        state = self._state
        position = {"epoch": self._cursor.epoch_label, "iteration": state.iteration, "step": state.step, "stage": stage}
        charges, self._charges = self._charges, {}
        own = [
            {"hook": "(loop)", "event": event, "calls": len(costs), "seconds": sum(costs)}
            for event, costs in charges.items()
        ]
        self._recorder.append_costs([{**position, **cost} for cost in self._plan.drain_costs() + own])
