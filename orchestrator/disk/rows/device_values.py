"""Values that hooks record on a GPU, read in one transfer."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

PLAIN = {int, float, str, bool, type(None)}
"""Types of values that need not be read."""
_Place = tuple[dict[str, Any], str]
"""A row, and the name of a value in it."""


class DeviceValues:
    """Scalars of some rows on a GPU, and times between CUDA events. Used in workers.

    On the training's stream a copy would wait for all later work. So the copy has its own stream,
    which waits for an event recorded when the rows were closed.
    """

    def __init__(self, rows: Collection[dict[str, Any]]) -> None:
        self._scalars: list[_Place] = []
        self._times: list[_Place] = []
        for row in rows:
            for name, value in row.items():
                if type(value) in PLAIN:
                    continue
                if is_on_gpu(value) and value.numel() == 1:
                    self._scalars.append((row, name))
                elif hasattr(value, "resolve"):
                    self._times.append((row, name))

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
        by_dtype: dict[Any, list[_Place]] = {}
        for row, name in self._scalars:
            by_dtype.setdefault(row[name].dtype, []).append((row, name))

        with torch.cuda.stream(stream):
            places: list[_Place] = []
            stacks: list[Any] = []
            for dtype, scalars in by_dtype.items():
                if _is_integer(dtype):
                    continue
                places.extend(scalars)
                stacks.append(_stack(scalars).double())
            numbers = torch.cat(stacks).tolist() if stacks else []
            for (row, name), number in zip(places, numbers, strict=True):
                row[name] = number

            # As floats, integers beyond 2^53 would be rounded.
            for dtype, scalars in by_dtype.items():
                if not _is_integer(dtype):
                    continue
                for (row, name), tensor in zip(scalars, _stack(scalars).cpu(), strict=True):
                    row[name] = read_number(tensor)

    def drop(self) -> int:
        """Remove the values from the rows, and return how many rows had any."""
        for row, name in (*self._scalars, *self._times):
            del row[name]
        return len({id(row) for row, _ in (*self._scalars, *self._times)})


def _stack(scalars: Sequence[_Place]) -> Any:
    import torch

    return torch.stack([row[name].detach().reshape(()) for row, name in scalars])


def read_on_cpu(value: Any) -> Any:
    """Return the number in a tensor on the CPU, and any other value unchanged."""
    is_on_cpu = getattr(value, "is_cpu", False) and not is_on_gpu(value)
    return read_number(value) if is_on_cpu and value.numel() == 1 else value


def read_number(value: Any) -> Any:
    """Return the number in a tensor of one element on the CPU, as an integer or a float. A bool
    becomes a float."""
    number = value.item()
    if isinstance(number, bool) or not isinstance(number, int):
        return float(number)
    # The type stays known, so that a column has one type even if only some of its numbers are
    # large.
    return np.uint64(number) if str(value.dtype) == "torch.uint64" else number


def _is_integer(dtype: Any) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or str(dtype) == "torch.bool")


def is_on_gpu(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True
