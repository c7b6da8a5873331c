"""Values of rows on a GPU, copied in one transfer that does not wait for later work."""

from collections.abc import Collection
from typing import Any

_PLAIN = {int, float, str, bool, type(None)}


class DeviceValues:
    """Scalars of some rows on a GPU, and times between CUDA events. Used in workers.

    On the training's stream a copy would wait for all later work. So the copy has its own stream, which waits for an
    event recorded when the rows were closed.
    """

    def __init__(self, rows: Collection[dict[str, Any]]) -> None:
        recorded = [(row, name, value) for row in rows for name, value in row.items() if type(value) not in _PLAIN]
        self._scalars = [(row, name) for row, name, value in recorded if is_on_gpu(value) and value.numel() == 1]
        self._times = [(row, name) for row, name, value in recorded if hasattr(value, "resolve")]
        if self._scalars:
            import torch

            row, name = self._scalars[0]
            self._device = row[name].device
            self._closed = torch.cuda.current_stream(self._device).record_event()

    def ready(self) -> bool:
        """Return, without waiting, whether the GPU has computed all values."""
        if self._times:
            last = self._times[-1][0]
            if not all(value.ready() for value in last.values() if hasattr(value, "ready")):
                return False
        return not self._scalars or bool(self._closed.query())

    def read(self) -> None:
        """Replace the values in the rows by numbers. Waits only for these values."""
        if not self._scalars:
            return
        import torch

        stream = torch.cuda.Stream(self._device)
        stream.wait_event(self._closed)
        by_dtype: dict[Any, list[tuple[dict[str, Any], str]]] = {}
        for row, name in self._scalars:
            by_dtype.setdefault(row[name].dtype, []).append((row, name))
        with torch.cuda.stream(stream):
            stacks = [
                torch.stack([row[name].detach().reshape(()) for row, name in scalars]).double()
                for scalars in by_dtype.values()
            ]
            numbers = torch.cat(stacks).tolist()
        for (row, name), number in zip(
            (scalar for scalars in by_dtype.values() for scalar in scalars), numbers, strict=True
        ):
            row[name] = number

    def drop(self) -> int:
        """Remove the values from the rows, and return how many rows had any."""
        for row, name in (*self._scalars, *self._times):
            del row[name]
        return len({id(row) for row, _ in (*self._scalars, *self._times)})


def is_on_gpu(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True
