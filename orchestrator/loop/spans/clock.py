"""The span clock: where the time of each iteration went, on the host or on a device."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from orchestrator.column_names import SPANS
from orchestrator.loop.spans.columns import SPAN_COLUMNS, Column, get_wall_time
from orchestrator.loop.spans.device import DeviceSpan, DeviceTimestamp
from orchestrator.loop.spans.timestamps import INTERVALS


class SpanClock:
    """Clock of an iteration's timestamps. Used in workers.

    A timestamp is a reading of the host's clock. A flush computes the spans between timestamps, for
    many rows.
    """

    def __init__(self) -> None:
        self.recording = False
        self.moment: Callable[[], Any] = perf_counter
        """Function that takes a timestamp; the difference of two is a number, or a DeviceSpan."""
        self.device_mark: Callable[[], DeviceTimestamp] | None = None
        """`moment`, if it takes timestamps on a device."""
        self.iteration_s = 0.0
        """Seconds of the last iteration; on a GPU, of the last iteration whose time is known."""
        self.checkpoint_s = 0.0
        """Seconds spent on saving since the last iteration ended."""
        self.waiting_s = 0.0
        """Seconds spent on waiting for other ranks since the last iteration ended."""

    @property
    def mark(self) -> Callable[[], Any]:
        """Function that takes a timestamp, or returns 0 if nothing is recorded."""
        return self.moment if self.recording else float

    def restart(self) -> float:
        """Start the first iteration of a phase now: the time before belongs to no iteration."""
        self.checkpoint_s = 0.0
        self.waiting_s = 0.0
        return perf_counter()

    def close(
        self,
        row: dict[str, Any],
        last: float,
        timestamps: Sequence[Any],
        turns: Sequence[Sequence[Any]] = (),
    ) -> Sequence[float]:
        """End the iteration that began at `last`. Return its numbers, the last of which is its end.

        While recording, these are the `NUMBERS` of `timestamps.py`: the seconds of saving and waiting,
        `last`, all timestamps and the end; otherwise only `last` and the end. If the iteration has
        several turns, `timestamps` end where the turns begin, and each turn has its own timestamps
        from its beginning on.
        """
        ended = perf_counter()
        self.iteration_s = ended - last
        if not self.recording:
            return last, ended
        if turns:
            # Merge the turns into one, whose intervals are the sums of theirs.
            summed = [*map(sum, zip(*turns, strict=True))]
            shift = timestamps[-1] - summed[0]
            timestamps = [*timestamps, *[moment + shift for moment in summed[1:]]]
        saving = self.checkpoint_s
        waiting = self.waiting_s
        self.checkpoint_s = 0.0
        self.waiting_s = 0.0
        return saving, waiting, last, *timestamps, ended

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of the numbers that `close` returns."""
        return SPAN_COLUMNS if self.recording else {"step_s": get_wall_time}


class CudaClock(SpanClock):
    """Clock on the device's timeline: a timestamp is a CUDA event, and taking it does not
    synchronize.

    On the host's clock, the device's work would be charged to whichever call happens to wait for
    it. Events are read when rows are flushed; `host_step_s` has the host's time. Time that the
    device idles between two iterations is in `other_s`, or in `checkpoint_s` after a checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timed = DeviceSpan()
        """Time of an iteration, not yet known."""
        self._ended: DeviceTimestamp
        self.moment = partial(DeviceTimestamp, [])
        self.device_mark = self.moment

    def restart(self) -> float:
        self._ended = self.moment()
        return super().restart()

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"host_step_s": get_wall_time}

    def close(
        self,
        row: dict[str, Any],
        last: float,
        timestamps: Sequence[Any],
        turns: Sequence[Sequence[Any]] = (),
    ) -> Sequence[float]:
        before = self._ended
        self._ended = self.moment()
        ended = perf_counter()
        step = self._ended - before
        row["step_s"] = step
        if self._timed.ready():
            self.iteration_s = self._timed.resolve() or ended - last
            self._timed = step

        if self.recording:
            between = "checkpoint_s" if self.checkpoint_s else "other_s"
            intervals = (between, *INTERVALS[1:])
            row.update(_make_device_spans(intervals, (before, *timestamps), turns, self._ended))
        self.checkpoint_s = 0.0
        self.waiting_s = 0.0
        return last, ended


def _make_device_spans(
    intervals: Sequence[str],
    timestamps: Sequence[DeviceTimestamp],
    turns: Sequence[Sequence[DeviceTimestamp]],
    ended: DeviceTimestamp,
) -> dict[str, DeviceSpan]:
    spans = {name: DeviceSpan() for name in SPANS}

    def add(names: Sequence[str], part: Sequence[DeviceTimestamp]) -> None:
        for name, (earlier, later) in zip(names, pairwise(part), strict=False):
            if earlier is not later:
                spans[name].add(earlier, later)

    add(intervals, timestamps)
    for turn in turns:
        add(intervals[len(timestamps) - 1 :], turn)
    last = turns[-1][-1] if turns else timestamps[-1]
    add(intervals[-1:], (last, ended))
    return spans


def make_clock(device: torch.device) -> SpanClock:
    return CudaClock() if device.type == "cuda" else SpanClock()
