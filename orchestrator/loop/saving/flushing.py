"""Flushing of a rank's rows, with the costs of hooks and of saving, and of its media. Runs in
workers."""

from collections import defaultdict

from hooks.event_plan import Plan
from hooks.state import State
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.loop.saving.cursor import RunCursor


class RowFlusher:
    """Flusher of a rank's rows, together with the costs of hooks and of saving, and of its
    media."""

    def __init__(
        self,
        recorder: Recorder,
        media: MediaWriter,
        plan: Plan,
        state: State,
        cursor: RunCursor,
    ) -> None:
        self._recorder = recorder
        self._media = media
        self._plan = plan
        self._state = state
        self._cursor = cursor
        self._charges: defaultdict[str, list[float]] = defaultdict(list)
        """Seconds of each cost of the loop since the last flush, by event."""

    def charge(self, event: str, seconds: float) -> None:
        """Add a cost: `save`, for which training waited, or `write`, in the background."""
        self._charges[event].append(seconds)

    def flush(self, *, is_saving: bool = False) -> None:
        """Write the rows and the costs since the last flush; before a checkpoint if `is_saving`,
        and then also the media."""
        self._record_costs(self._cursor.stage + (not is_saving))
        self._recorder.sync()
        if is_saving:
            self._media.flush()

    def close(self) -> None:
        self._record_costs(self._cursor.stage + 1)
        self._media.close()
        self._recorder.close()

    def _record_costs(self, stage: int) -> None:
        """Record costs that precede a checkpoint at this iteration and `stage` or a later one."""
        costs = self._plan.drain_costs()
        costs += [
            {"hook": "(loop)", "event": event, "calls": len(seconds), "seconds": sum(seconds)}
            for event, seconds in self._charges.items()
        ]
        self._charges.clear()

        position = {
            "epoch": self._cursor.epoch_label,
            "iteration": self._state.iteration,
            "step": self._state.step,
            "stage": stage,
        }
        self._recorder.append_costs([{**position, **cost} for cost in costs])
