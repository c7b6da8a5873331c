"""The phase clock: where the time of each iteration went."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

SPANS = (
    "data_wait_s",
    "to_device_s",
    "forward_s",
    "loss_s",
    "backward_s",
    "optimizer_s",
    "hooks_s",
    "checkpoint_s",
    "other_s",
)
DATA_WAIT, TO_DEVICE, FORWARD, LOSS, BACKWARD, OPTIMIZER, HOOKS, CHECKPOINT, OTHER = range(len(SPANS))


class Clock:
    """Splits an iteration into spans that add up to its wall time: each lap goes to one span. Worker process."""

    def __init__(self) -> None:
        self.recording = False
        self.iteration_s = 0.0
        self._spans = [0.0] * len(SPANS)
        self._last = self._started = perf_counter()

    @property
    def data_wait_s(self) -> float:
        """The wait for the present iteration's batch, on the host's clock; 0 unless recording."""
        return self._spans[DATA_WAIT]

    def restart(self) -> None:
        """Begins at this moment: what came before belongs to no iteration."""
        self._spans = [0.0] * len(SPANS)
        self._last = self._started = perf_counter()

    def lap(self, span: int) -> None:
        """Charges the time since the last lap to a span."""
        if not self.recording:
            return
        now = perf_counter()
        self._spans[span] += now - self._last
        self._last = now

    def close(self, row: dict[str, Any]) -> None:
        """Ends the iteration; puts its wall time into the row as `step_s`, and its spans if the clock is recording."""
        if not self.recording:
            now = perf_counter()
            row["step_s"] = self.iteration_s = now - self._started
            self._started = self._last = now
            return
        self.lap(OTHER)
        self.iteration_s = self._last - self._started
        row.update(zip(SPANS, self._spans, strict=True))
        row["step_s"] = self.iteration_s
        self._spans = [0.0] * len(SPANS)
        self._started = self._last


class DeviceSpan:
    """Seconds between pairs of CUDA events, read once the device has passed them."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def add(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Adds the time between two events."""
        self._pairs.append((start, end))

    def ready(self) -> bool:
        """Whether the device has passed the last event; does not wait."""
        return not self._pairs or bool(self._pairs[-1][1].query())  # type: ignore[no-untyped-call]

    def resolve(self) -> float:
        """The seconds; waits for the device where it has not passed yet."""
        if not self._pairs:
            return 0.0
        self._pairs[-1][1].synchronize()
        return float(sum(start.elapsed_time(end) for start, end in self._pairs)) / 1000


class CudaClock(Clock):
    """The phase clock on the device's own time line: a lap records an event, and nothing waits for it.

    Host time would charge the device's work to whichever call happens to wait for it. The events are drained when
    rows are flushed; `step_s` stays host wall time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mark = self._event()
        self._device_spans = [DeviceSpan() for _ in SPANS]

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def restart(self) -> None:
        super().restart()
        self._mark = self._event()
        self._device_spans = [DeviceSpan() for _ in SPANS]

    def lap(self, span: int) -> None:
        super().lap(span)
        if not self.recording:
            return
        mark = self._event()
        self._device_spans[span].add(self._mark, mark)
        self._mark = mark

    def close(self, row: dict[str, Any]) -> None:
        super().close(row)
        if self.recording:
            row.update(zip(SPANS, self._device_spans, strict=True))
        self._device_spans = [DeviceSpan() for _ in SPANS]


def clock_for(device: torch.device) -> Clock:
    """The clock that measures on a device."""
    return CudaClock() if device.type == "cuda" else Clock()
