"""Memory by layer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hooks.hook import Hook, Priority, Ranks
from hooks.layer_table import LayerTable
from hooks.leaf_modules import leaf_modules, tensors, uncompiled
from hooks.rhythm import Rhythm, paced_by
from hooks.state import State

FOLDER = "layer_memory"


@dataclass
class LayerMemory(Hook):
    """Measures now and then how much memory the forward pass of each leaf module takes and keeps, in training.

    Every rank measures itself; no communication, and nothing waits for the device. Goes to Parquet files under
    `layer_memory/` (`pandas.read_parquet`: rank, epoch, iteration, layer): `output_bytes`, the size of what the module
    gave, and on CUDA `allocated_bytes`, by which torch's allocator held more after the module than before it: outputs and
    what is kept for the backward pass. torch does not count the CPU's memory, so there is no such column there. A module
    called several times has a row for each call, in the order of the calls.

    The module hooks are there only in the iterations that are measured; a compiled model runs those uncompiled.
    Source: VISSL ProfilingHook (TRACK_BY_LAYER_MEMORY).
    """

    every: Rhythm = Rhythm(100, "steps")
    """Optimizer steps between two measurements; of such a step each micro-batch is measured."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    ranks: ClassVar[Ranks] = Ranks.ALL

    def __post_init__(self) -> None:
        if self.every.unit == "epochs" and self.every.count:
            raise ValueError(f"layer_memory measures single steps, and every is '{self.every}'; write steps, such as '100 steps'")
        self._watch = ExitStack()
        self._layers: list[str] = []
        self._sizes: dict[str, list[int]] = {}
        self._table: LayerTable | None = None

    def on_start(self, state: State) -> None:
        self._table = LayerTable(FOLDER, state)

    @paced_by("every")
    def on_batch(self, state: State) -> None:
        self._layers = []
        names = ("output_bytes", "allocated_bytes") if state.device.type == "cuda" else ("output_bytes",)
        self._sizes = {name: [] for name in names}
        self._watch.enter_context(uncompiled())
        for name, module in leaf_modules(state.module):
            self._watch_module(name, module, state.device)

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self._watch.close()
        if self._table is not None and self._layers:
            sizes = {name: torch.tensor(values, dtype=torch.int64) for name, values in self._sizes.items()}
            self._table.add(state, self._layers, sizes)

    def on_phase_end(self, state: State) -> None:
        self._write()

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._write()

    def on_end(self, state: State) -> None:
        self._watch.close()
        self._write()

    def on_exception(self, state: State, error: BaseException) -> None:
        self._watch.close()
        self._write()

    def _write(self) -> None:
        if self._table is not None:
            self._table.write()

    def _watch_module(self, name: str, module: nn.Module, device: torch.device) -> None:
        held = 0

        def before(module: nn.Module, arguments: Any) -> None:
            nonlocal held
            held = torch.cuda.memory_allocated(device)

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            self._layers.append(name)
            self._sizes["output_bytes"].append(sum(tensor.nbytes for tensor in tensors(output)))
            if device.type == "cuda":
                self._sizes["allocated_bytes"].append(torch.cuda.memory_allocated(device) - held)

        if device.type == "cuda":
            self._watch.callback(module.register_forward_pre_hook(before).remove)
        self._watch.callback(module.register_forward_hook(after).remove)
