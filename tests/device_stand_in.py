"""A stand-in for a GPU: a time line of its own, on which work is done one after the other, and
events on it."""

import math
from typing import Any


class Device:
    """What is given to it, it does later; the host goes on meanwhile, and `now` is the host's time
    in seconds."""

    def __init__(self) -> None:
        self.now, self.free_at = 100.0, 0.0
        self.events = 0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        """The host gives it work that takes so long."""
        self.free_at = max(self.free_at, self.now) + seconds

    def wait(self) -> None:
        """The host waits until all is done."""
        self.now = max(self.now, self.free_at)

    def Event(self, enable_timing: bool) -> "DeviceEvent":
        self.events += 1
        return DeviceEvent(self)


class DeviceEvent:
    """As torch's, of a Device; milliseconds like torch's."""

    def __init__(self, device: Device) -> None:
        self._device, self._at = device, 0.0

    def record(self, stream: Any = None) -> None:
        self._at = max(self._device.free_at, self._device.now)

    def query(self) -> bool:
        return self._at <= self._device.now

    def synchronize(self) -> None:
        assert self._at < math.inf, "the host would wait for ever"
        self._device.now = max(self._device.now, self._at)

    def elapsed_time(self, end: "DeviceEvent") -> float:
        assert self.query(), "torch raises where the start is not passed"
        assert end.query(), "torch raises where the end is not passed"
        return 1000 * (end._at - self._at)
