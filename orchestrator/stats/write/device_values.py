"""Values of rows on a GPU, copied in one transfer that does not wait for later work."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_PLAIN = {int, float, str, bool, type(None)}


class DeviceValues:
    """Scalars of some rows on a GPU, and times between CUDA events. Used in workers.

    On the training's stream a copy would wait for all later work. So it has its own stream, which waits for an event
    recorded when the rows were closed.
    """

    def __init__(self, rows: Collection[dict[str, Any]]) -> None:
        held = [(row, name, value) for row in rows for name, value in row.items() if type(value) not in _PLAIN]
        self._places = [(row, name) for row, name, value in held if is_on_gpu(value) and value.numel() == 1]
        self._times = [(row, name) for row, name, value in held if hasattr(value, "resolve")]
        if self._places:
            import torch

            row, name = self._places[0]
            self._device = row[name].device
            self._closed = torch.cuda.current_stream(self._device).record_event()

    def ready(self) -> bool:
        """Return, without waiting, whether the GPU has computed all values."""
        if self._times:
            last = self._times[-1][0]
            if not all(value.ready() for value in last.values() if hasattr(value, "ready")):
                return False
        return not self._places or bool(self._closed.query())

    def read(self) -> None:
        """Replace the values in the rows by numbers; waits for these alone."""
        if not self._places:
            return
        import torch

        stream = torch.cuda.Stream(self._device)
        stream.wait_event(self._closed)
        kinds: dict[Any, list[tuple[dict[str, Any], str]]] = {}
        for row, name in self._places:
            kinds.setdefault(row[name].dtype, []).append((row, name))
        with torch.cuda.stream(stream):
            stacks = [
                torch.stack([row[name].detach().reshape(()) for row, name in places]).double()
                for places in kinds.values()
            ]
            numbers = torch.cat(stacks).tolist()
        for (row, name), number in zip((place for places in kinds.values() for place in places), numbers, strict=True):
            row[name] = number

    def leave_out(self) -> int:
        """Remove the values from the rows, and return how many rows had any."""
        for row, name in (*self._places, *self._times):
            del row[name]
        return len({id(row) for row, _ in (*self._places, *self._times)})


def is_on_gpu(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True
