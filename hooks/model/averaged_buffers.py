"""Moving averages of a module's buffers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hooks.model.averaged_parameters import (
    copy_in_full_precision,
    move_to_averages,
    restore_average,
)


class _Slot(NamedTuple):
    """A place of a buffer: a module and a name in it."""

    module: nn.Module
    name: str

    def get(self) -> Tensor:
        buffer: Tensor = getattr(self.module, self.name)
        return buffer

    def set(self, buffer: Tensor) -> None:
        setattr(self.module, self.name, buffer)


class AveragedBuffers:
    """Averages of the floating-point buffers in a module's state dict, which begin as copies."""

    def __init__(self, module: nn.Module, device: str | None) -> None:
        self._device = device
        self._slots = _find_slots(module)
        """Places of each buffer by its first name."""
        self._averages = {
            name: copy_in_full_precision(slots[0].get(), device)
            for name, slots in self._slots.items()
        }

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Move the averages towards the buffers by a fraction."""
        pairs = []
        for name, slots in self._slots.items():
            buffer = slots[0].get()
            if self._averages[name].shape != buffer.shape:  # a forward pass has enlarged it
                self._averages[name] = copy_in_full_precision(buffer, self._device)
            pairs.append((self._averages[name], buffer))
        for average, value in move_to_averages(pairs):
            wide = value.to(average)
            # Between equal infinities, such as those of a mask, interpolation gives NaN.
            average.copy_(torch.where(average == wide, average, average.lerp(wide, weight)))

    def to_dict(self) -> dict[str, Tensor]:
        return dict(self._averages)

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Load averages by name; raises ValueError if they do not fit."""
        for name, average in self._averages.items():
            restore_average(name, average, average, values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the module, and restore its own buffers on exit, even after an
        error."""
        all_slots = chain.from_iterable(self._slots.values())
        raw_buffers = [(slot, slot.get()) for slot in all_slots]
        try:
            for name, slots in self._slots.items():
                buffer = slots[0].get()
                average = self._averages[name].to(buffer)
                # A forward pass may have given a place a buffer of its own.
                for slot in [slot for slot in slots if slot.get() is buffer]:
                    slot.set(average)
            yield
        finally:
            for slot, buffer in raw_buffers:
                slot.set(buffer)


def _find_slots(module: nn.Module) -> dict[str, list[_Slot]]:
    """Return the places of each floating-point buffer in the state dict, by its first name."""
    saved = module.state_dict().keys()
    names: dict[int, str] = {}
    slots: dict[str, list[_Slot]] = {}
    for path, buffer in module.named_buffers(remove_duplicate=False):
        if path in saved and buffer.is_floating_point():
            owner, _, name = path.rpartition(".")
            first = names.setdefault(id(buffer), path)
            slots.setdefault(first, []).append(_Slot(module.get_submodule(owner), name))
    return slots
