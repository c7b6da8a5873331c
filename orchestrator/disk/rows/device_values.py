"""Values that hooks record on a GPU, read without waiting for later work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from orchestrator.disk.rows.values import PLAIN, is_measured_time, is_on_gpu, read_number

if TYPE_CHECKING:
    import torch

_Place = tuple[dict[str, Any], str]
"""A row, and the name of a value in it."""


class DeviceValues:
    """Scalars of some rows on a GPU, and times between CUDA events. Used in workers."""

    def __init__(self, rows: Collection[dict[str, Any]]) -> None:
        scalars: list[_Place] = []
        times: list[_Place] = []
        for row in rows:
            for name, value in row.items():
                if type(value) in PLAIN:
                    continue
                if is_on_gpu(value) and value.numel() == 1:
                    scalars.append((row, name))
                elif is_measured_time(value):
                    times.append((row, name))

        self._places = [*scalars, *times]
        self._last_timed_row = times[-1][0] if times else {}
        self._scalars = _GpuScalars(scalars) if scalars else None

    def ready(self) -> bool:
        """Return, without waiting, whether the GPU has computed all values."""
        # The GPU passes the events of a stream in order, so those of the last row come last.
        times = [value for value in self._last_timed_row.values() if hasattr(value, "ready")]
        if not all(time.ready() for time in times):
            return False
        return self._scalars is None or self._scalars.ready()

    def read(self) -> None:
        """Replace the scalars in the rows by numbers. Waits only for these values.

        Times stay, and are resolved when the rows become columns.
        """
        if self._scalars is not None:
            self._scalars.read()

    def drop(self) -> int:
        """Remove the values from the rows, and return how many rows had any."""
        for row, name in self._places:
            del row[name]
        return len({id(row) for row, _ in self._places})


class _GpuScalars:
    """Scalars on a GPU, which are read in one transfer for all floats, and in one for each type of
    integers.

    On the training's stream a copy would wait for all later work. So the copy has its own stream,
    which waits for an event recorded when the rows were closed.
    """

    def __init__(self, places: Sequence[_Place]) -> None:
        import torch

        row, name = places[0]
        self._places = places
        self._device = row[name].device
        self._closed = torch.cuda.current_stream(self._device).record_event()

    def ready(self) -> bool:
        return bool(self._closed.query())

    def read(self) -> None:
        import torch

        floats: dict[torch.dtype, list[_Place]] = {}
        integers: dict[torch.dtype, list[_Place]] = {}
        for row, name in self._places:
            dtype = row[name].dtype
            same_kind = integers if _is_integer(dtype) else floats
            same_kind.setdefault(dtype, []).append((row, name))

        stream = torch.cuda.Stream(self._device)
        stream.wait_event(self._closed)
        with torch.cuda.stream(stream):
            if floats:
                _read_floats([*floats.values()])
            # As floats, integers beyond 2^53 would be rounded.
            for places in integers.values():
                _read_integers(places)


def _read_floats(groups: Sequence[Sequence[_Place]]) -> None:
    """Replace scalars by numbers, given the scalars of each dtype."""
    import torch

    numbers = torch.cat([_stack(places).double() for places in groups]).tolist()
    places = chain.from_iterable(groups)
    for (row, name), number in zip(places, numbers, strict=True):
        row[name] = number


def _read_integers(places: Sequence[_Place]) -> None:
    for (row, name), tensor in zip(places, _stack(places).cpu(), strict=True):
        row[name] = read_number(tensor)


def _stack(places: Sequence[_Place]) -> torch.Tensor:
    import torch

    return torch.stack([row[name].detach().reshape(()) for row, name in places])


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or str(dtype) == "torch.bool")
