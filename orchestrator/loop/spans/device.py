"""Timestamps on a device's timeline, and the spans between them. Used in workers."""

from collections import deque
from contextlib import suppress

import torch

_UNREAD = 64
"""Number of unread pairs of timestamps above which a sum reads those that the device has passed."""


class DeviceTimestamp:
    """Timestamp on a device's timeline. Its CUDA event is reused once the timestamp is
    garbage-collected."""

    __slots__ = ("_free", "event")

    def __init__(self, free: list[torch.cuda.Event]) -> None:
        self._free = free
        self.event = free.pop() if free else torch.cuda.Event(enable_timing=True)
        self.event.record()

    def __sub__(self, earlier: "DeviceTimestamp") -> "DeviceSpan":
        span = DeviceSpan()
        span.add(earlier, self)
        return span

    def __del__(self) -> None:
        self._free.append(self.event)


class DeviceSpan:
    """Sum of the seconds between pairs of timestamps, which are read once the device has passed
    them."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[DeviceTimestamp, DeviceTimestamp]] = deque()
        self._seconds = 0.0
        """Sum over the pairs that have been read."""

    def add(self, start: DeviceTimestamp, end: DeviceTimestamp) -> None:
        self._pairs.append((start, end))

    def ready(self) -> bool:
        """Return whether the device has passed the last timestamp; does not synchronize."""
        return not self._pairs or bool(self._pairs[-1][1].event.query())

    def resolve(self) -> float:
        """Return the seconds; synchronizes."""
        if self._pairs:
            self._pairs[-1][1].event.synchronize()
        while self._pairs:
            self._read_first()
        return self._seconds

    __float__ = resolve

    def __radd__(self, seconds: float) -> "DeviceSpan":
        total = DeviceSpan()
        total._pairs += self._pairs
        total._seconds = self._seconds + seconds
        return total

    def __iadd__(self, other: "DeviceSpan | float") -> "DeviceSpan":
        if isinstance(other, float):
            self._seconds += other
            return self
        self._pairs += other._pairs
        if len(self._pairs) > _UNREAD:
            self.elapsed_so_far()
        return self

    def elapsed_so_far(self) -> float:
        """Return the seconds between the timestamps that the device has passed; does not
        synchronize.

        A failed device has passed none.
        """
        with suppress(torch.AcceleratorError):
            while self._pairs and self._pairs[0][1].event.query():
                self._read_first()
        return self._seconds

    def _read_first(self) -> None:
        start, end = self._pairs.popleft()
        self._seconds += start.event.elapsed_time(end.event) / 1000
