"""What rows hold on a GPU, brought over in one transfer that waits for nothing given after them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_PLAIN = {int, float, str, bool, type(None)}


class DeviceValues:
    """The values of one element that some rows hold on a GPU, as they were when the rows were closed, and times that it
    tells later. Worker process.

    On the stream of the training a transfer would queue behind all that was given to the GPU since, and the host would
    wait for that: this one has a stream of its own, which waits for the moment at which the rows were closed.
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
        """Whether the GPU has computed all of them; does not wait. It passes times in their order."""
        if self._times:
            last = self._times[-1][0]
            if not all(value.ready() for value in last.values() if hasattr(value, "ready")):
                return False
        return not self._places or bool(self._closed.query())

    def read(self) -> None:
        """Puts numbers in their places in the rows; waits for them, and for no more."""
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
        """Takes them out of the rows, read or not; returns how many rows had any."""
        for row, name in (*self._places, *self._times):
            del row[name]
        return len({id(row) for row, _ in (*self._places, *self._times)})


def is_on_gpu(value: Any) -> bool:
    """Whether a value is a tensor in the memory of a GPU."""
    return getattr(value, "is_cuda", False) is True
