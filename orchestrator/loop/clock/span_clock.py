"""The span clock: where the time of each iteration went."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import pairwise
from operator import add
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.stats.aggregate.spans import SPANS

INTERVALS = (
    "other_s",  # since the iteration before ended; what saving and waiting took of it is taken out
    "hooks_s",  # on_iteration_start
    "data_wait_s",
    "to_device_s",
    "hooks_s",  # on_batch
    "forward_s",
    "hooks_s",  # on_forward
    "loss_s",
    "hooks_s",  # on_loss
    "backward_s",
    "all_reduce_wait_s",
    "hooks_s",  # on_backward
    "optimizer_s",  # unscaling
    "hooks_s",  # on_gradients
    "optimizer_s",
    "hooks_s",  # on_update
    "optimizer_s",  # clearing the gradients, counting
    "hooks_s",  # on_step
)
"""Spans between each two of an iteration's marks, in order."""
Column = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Makes a column from the numbers that `Clock.close` returns, shape (rows, any)."""


class Clock:
    """Clock of an iteration's timestamps. Used in workers.

    A mark is a reading of the host's clock and nothing else. The spans between marks are computed at a flush, for many
    rows at once.
    """

    def __init__(self) -> None:
        self.recording = False
        self.moment: Callable[[], Any] = perf_counter
        """Returns the present moment; the difference of two is a number, or a device's span."""
        self.device_mark: Callable[[], Mark] | None = None
        """`moment`, if it is a device's."""
        self.iteration_s = 0.0
        """Seconds of the last iteration; on a device, of the last one that is known."""
        self.checkpoint_s = 0.0
        """Seconds of saving since the last iteration ended."""
        self.waiting_s = 0.0
        """Seconds of waiting for other ranks since then."""

    @property
    def mark(self) -> Callable[[], Any]:
        """Returns the present moment, or 0 unless recording."""
        return self.moment if self.recording else float

    def restart(self) -> float:
        """Begin at this moment: the time before belongs to no iteration."""
        self.checkpoint_s = self.waiting_s = 0.0
        return perf_counter()

    def close(
        self, row: dict[str, Any], last: float, marks: Sequence[Any], turns: Sequence[Sequence[Any]] = ()
    ) -> Sequence[float]:
        """End the iteration that began at `last`. Return its numbers, the last of which is its end.

        If recording: the seconds of saving and waiting, `last`, all marks, the end. Otherwise `last` and the end. In an
        iteration of several turns `marks` end where they begin, and each turn has its own from its beginning on.
        """
        ended = perf_counter()
        self.iteration_s = ended - last
        if not self.recording:
            return last, ended
        if turns:
            # As if there were one turn, whose intervals are the sums of theirs.
            summed = [*map(sum, zip(*turns, strict=True))]
            shift = marks[-1] - summed[0]
            marks = [*marks, *[moment + shift for moment in summed[1:]]]
        saving, waiting = self.checkpoint_s, self.waiting_s
        self.checkpoint_s = self.waiting_s = 0.0
        return saving, waiting, last, *marks, ended

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of the numbers that `close` returns."""
        return SPAN_COLUMNS if self.recording else {"step_s": _wall_time}


_UNREAD = 64
"""Most unread pairs of marks before a sum looks for those that the device has passed."""


class Mark:
    """A moment on a device's time line. Its event is reused once nobody refers to the mark."""

    __slots__ = ("_free", "event")

    def __init__(self, free: list[torch.cuda.Event]) -> None:
        self._free = free
        self.event = free.pop() if free else torch.cuda.Event(enable_timing=True)
        self.event.record()

    def __sub__(self, earlier: Mark) -> DeviceSpan:
        span = DeviceSpan()
        span.add(earlier, self)
        return span

    def __del__(self) -> None:
        self._free.append(self.event)


class DeviceSpan:
    """Seconds between pairs of marks, read once the device has passed them. Can be added to spans and numbers."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[Mark, Mark]] = deque()
        self._seconds = 0.0
        """Sum of the pairs that were read."""

    def add(self, start: Mark, end: Mark) -> None:
        self._pairs.append((start, end))

    def ready(self) -> bool:
        """Return whether the device has passed the last mark; does not wait."""
        return not self._pairs or bool(self._pairs[-1][1].event.query())

    def resolve(self) -> float:
        """Return the seconds; waits for the device."""
        if self._pairs:
            self._pairs[-1][1].event.synchronize()
        while self._pairs:
            self._read_first()
        return self._seconds

    __float__ = resolve

    def __radd__(self, seconds: float) -> DeviceSpan:
        self._seconds += seconds
        return self

    def __iadd__(self, other: DeviceSpan | float) -> DeviceSpan:
        if isinstance(other, float):
            self._seconds += other
            return self
        self._pairs += other._pairs
        if len(self._pairs) > _UNREAD:
            self.elapsed_so_far()
        return self

    def elapsed_so_far(self) -> float:
        """Return the seconds between the marks that the device has passed; does not wait. A failed device has none."""
        with suppress(torch.AcceleratorError):
            while self._pairs and self._pairs[0][1].event.query():
                self._read_first()
        return self._seconds

    def _read_first(self) -> None:
        start, end = self._pairs.popleft()
        self._seconds += start.event.elapsed_time(end.event) / 1000


class CudaClock(Clock):
    """The clock on the device's own time line: a mark is an event, and nothing waits for it.

    The host's time would charge the device's work to whichever call happens to wait for it. Events are read when rows
    are flushed; `host_step_s` has the host's time. A wait of the device between two iterations is in `other_s`, or in
    `checkpoint_s` after a checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timed = DeviceSpan()
        """An iteration whose time is not yet known."""
        self._ended: Mark
        self.moment = self.device_mark = partial(Mark, [])

    def restart(self) -> float:
        self._ended = self.moment()
        return super().restart()

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"host_step_s": _wall_time}

    def close(
        self, row: dict[str, Any], last: float, marks: Sequence[Any], turns: Sequence[Sequence[Any]] = ()
    ) -> Sequence[float]:
        before, self._ended = self._ended, self.moment()
        ended = perf_counter()
        row["step_s"] = step = self._ended - before
        if self._timed.ready():
            self.iteration_s, self._timed = self._timed.resolve() or ended - last, step
        if self.recording:
            between = "checkpoint_s" if self.checkpoint_s else "other_s"
            row.update(_device_spans((between, *INTERVALS[1:]), (before, *marks), turns, self._ended))
        self.checkpoint_s = self.waiting_s = 0.0
        return last, ended


def _device_spans(
    intervals: Sequence[str], marks: Sequence[Mark], turns: Sequence[Sequence[Mark]], ended: Mark
) -> dict[str, DeviceSpan]:
    spans = {name: DeviceSpan() for name in SPANS}
    first = len(marks) - 1
    last = turns[-1][-1] if turns else marks[-1]
    for begin, part in ((0, marks), *((first, turn) for turn in turns), (len(intervals) - 1, (last, ended))):
        for name, (start, end) in zip(intervals[begin:], pairwise(part), strict=False):
            if start is not end:
                spans[name].add(start, end)
    return spans


def _wall_time(times: NDArray[np.float64]) -> NDArray[np.float64]:
    return times[:, -1] - times[:, -2]


def _charged(span: str) -> Column:
    """Return the column of a span: the sum of its intervals between the numbers from the third on."""
    begins = [2 + index for index, name in enumerate(INTERVALS) if name == span]
    return lambda times: reduce(add, [times[:, begin + 1] - times[:, begin] for begin in begins])


_INTERVALS_OF = {span: _charged(span) for span in SPANS if span in INTERVALS}
SPAN_COLUMNS: Mapping[str, Column] = {
    **_INTERVALS_OF,
    "all_reduce_wait_s": lambda times: _INTERVALS_OF["all_reduce_wait_s"](times) + times[:, 1],
    "other_s": lambda times: _INTERVALS_OF["other_s"](times) - times[:, 0] - times[:, 1],
    "checkpoint_s": lambda times: times[:, 0],
    "step_s": lambda times: times[:, -1] - times[:, 2],
}
"""The spans, and `step_s`, the wall time that they add up to."""


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else Clock()
