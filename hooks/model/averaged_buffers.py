"""Moving averages of a module's buffers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hooks.model.averaged_parameters import (
    copy_in_full_precision,
    move_to_averages,
    restore_average,
)

Slot = tuple[nn.Module, str]
"""A module and the name of one of its buffers."""


class AveragedBuffers:
    """Averages of the floating-point buffers in a module's state dict, which begin as copies."""

    def __init__(self, module: nn.Module, device: str | None) -> None:
        self._device = device
        self._slots = dict(_find_slots(module))
        self._averages = {
            name: copy_in_full_precision(getattr(*slot), device)
            for name, slot in self._slots.items()
        }

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Move the averages towards the buffers by a fraction."""
        pairs = []
        for name, slot in self._slots.items():
            buffer = getattr(*slot)
            if self._averages[name].shape != buffer.shape:  # a forward pass has enlarged it
                self._averages[name] = copy_in_full_precision(buffer, self._device)
            pairs.append((self._averages[name], buffer))
        for average, value in move_to_averages(pairs):
            average.lerp_(value.to(average), weight)

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
        raw_buffers = {name: getattr(*slot) for name, slot in self._slots.items()}
        try:
            for name, slot in self._slots.items():
                setattr(*slot, self._averages[name].to(raw_buffers[name]))
            yield
        finally:
            for name, slot in self._slots.items():
                setattr(*slot, raw_buffers[name])


def _find_slots(module: nn.Module) -> Iterator[tuple[str, Slot]]:
    """Yield the floating-point buffers that are part of the state dict."""
    saved = module.state_dict().keys()
    for path, buffer in module.named_buffers():
        if path in saved and buffer.is_floating_point():
            owner, _, name = path.rpartition(".")
            yield path, (module.get_submodule(owner), name)
