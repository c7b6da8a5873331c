"""Memory by layer."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hooks.model.layers import list_tensors
from hooks.state import State
from hooks.stats.shared.layer_monitor import LayerMonitor


@dataclass
class LayerMemory(LayerMonitor):
    """Measure the memory that the forward pass of each leaf module takes and keeps, in some
    training iterations.

    Parquet files under `layer_memory/` (`pandas.read_parquet`: rank, epoch, iteration, layer) have
    `output_bytes`, the size of the dense outputs, and on CUDA `allocated_bytes`, the growth of
    allocated memory during the call: outputs and what the backward pass needs. Each call of a
    module has a row. A measured iteration runs a compiled model uncompiled.
    Source: VISSL ProfilingHook (TRACK_BY_LAYER_MEMORY).
    """

    folder: ClassVar[str] = "layer_memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers: list[str] = []
        self._sizes: dict[str, list[int]] = {}

    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        device = state.device
        allocated = 0

        def before(layer: nn.Module, arguments: Any) -> None:
            nonlocal allocated
            allocated = torch.cuda.memory_allocated(device)

        def after(layer: nn.Module, arguments: Any, output: Any) -> None:
            dense = [tensor for tensor in list_tensors(output) if not tensor.is_sparse]
            self._layers.append(name)
            self._add("output_bytes", sum(tensor.nbytes for tensor in dense))
            if device.type == "cuda":
                self._add("allocated_bytes", torch.cuda.memory_allocated(device) - allocated)

        if device.type == "cuda":
            self.until_read(layer.register_forward_pre_hook(before))
        self.until_read(layer.register_forward_hook(after))

    def read(self, state: State) -> None:
        if not self._layers:
            return
        statistics = {
            name: torch.tensor(sizes, dtype=torch.int64) for name, sizes in self._sizes.items()
        }
        self.keep(state, self._layers, statistics)
        self._layers = []
        self._sizes = {}

    def _add(self, statistic: str, value: int) -> None:
        self._sizes.setdefault(statistic, []).append(value)
