"""Memory by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hooks.hook import Hook
from hooks.parts.layer_monitor import LayerMonitor
from hooks.parts.leaf_modules import tensors
from hooks.state import State


@dataclass
class LayerMemory(LayerMonitor, Hook):
    """Measures now and then how much memory the forward pass of each leaf module takes and keeps, in training.

    Every rank measures itself; no communication, and nothing waits for the device. Goes to Parquet files under
    `layer_memory/` (`pandas.read_parquet`: rank, epoch, iteration, layer): `output_bytes`, the size of what the module
    gave, and on CUDA `allocated_bytes`, by which torch's allocator held more after the module than before it: outputs
    and what is kept for the backward pass. torch does not count the CPU's memory, so there is no such column there. A
    module called several times has a row for each call, in the order of the calls.

    The module hooks are there only in the iterations that are measured; a compiled model runs those uncompiled.
    Source: VISSL ProfilingHook (TRACK_BY_LAYER_MEMORY).
    """

    folder: ClassVar[str] = "layer_memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers: list[str] = []
        self._sizes: dict[str, list[int]] = {}

    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        device, held = state.device, 0

        def before(layer: nn.Module, arguments: Any) -> None:
            nonlocal held
            held = torch.cuda.memory_allocated(device)

        def after(layer: nn.Module, arguments: Any, output: Any) -> None:
            self._layers.append(name)
            self._add("output_bytes", sum(tensor.nbytes for tensor in tensors(output)))
            if device.type == "cuda":
                self._add("allocated_bytes", torch.cuda.memory_allocated(device) - held)

        if device.type == "cuda":
            self.until_read(layer.register_forward_pre_hook(before))
        self.until_read(layer.register_forward_hook(after))

    def read(self, state: State) -> None:
        layers, self._layers = self._layers, []
        sizes, self._sizes = self._sizes, {}
        if layers:
            self.keep(state, layers, {name: torch.tensor(values, dtype=torch.int64) for name, values in sizes.items()})

    def _add(self, statistic: str, value: int) -> None:
        self._sizes.setdefault(statistic, []).append(value)
