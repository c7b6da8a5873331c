"""Mean and spread of what the layers put out."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hooks.hook import Hook, Priority, Ranks
from hooks.layer_table import LayerTable
from hooks.leaf_modules import leaf_modules, tensors, uncompiled
from hooks.rhythm import Rhythm, paced_by
from hooks.state import State

FOLDER = "activations"


@dataclass
class ActivationStats(Hook):
    """Measures the outputs of the model's leaf modules now and then: their mean, and their spread max |x - mean|.

    Training only. Every rank measures its own batch; no communication. What each layer gave goes to Parquet files
    under `activations/` (`pandas.read_parquet`: rank, epoch, iteration, layer, mean, spread) and to
    `state.info["activations"]` for whoever draws it; the row has `activation_mean_max` (the largest |mean|),
    `activation_spread_max` and `activation_spread_min` over the layers. A layer is called as in `named_modules`; its
    second output or second call in one pass is `<layer>#1`, and so on. Outputs may be nested in any way; those that
    hold no floating-point numbers are left out.

    The module hooks are there only in the iterations that are measured; a compiled model runs those uncompiled. All is
    reduced on the device, in three operations a tensor, and read in one transfer as the phase ends.
    Source: VISSL ActivationStatisticsMonitor, Composer ActivationMonitor.
    """

    every: Rhythm = Rhythm(100, "steps")
    """Optimizer steps between two measurements; of such a step each micro-batch is measured."""
    inputs: bool = False
    """Whether to measure what goes into each layer, too, as `<layer>.input`."""
    ignored: tuple[str, ...] = ("ReLU",)
    """Types of modules to leave out, as `ReLU` or `torch.nn.modules.activation.ReLU`."""
    sample_feature_map: bool = False
    """Whether to look at the centre pixel alone of feature maps of shape (N, C, H, W), which is cheaper."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    ranks: ClassVar[Ranks] = Ranks.ALL

    def __post_init__(self) -> None:
        if self.every.unit == "epochs" and self.every.count:
            raise ValueError(f"activation_stats measures single steps, and every is '{self.every}'; write steps, such as '100 steps'")
        self._watch = ExitStack()
        self._names: Counter[str] = Counter()
        self._layers: list[str] = []
        self._moments: list[tuple[Tensor, Tensor, Tensor]] = []
        self._table: LayerTable | None = None

    def on_start(self, state: State) -> None:
        self._table = LayerTable(FOLDER, state)

    @paced_by("every")
    def on_batch(self, state: State) -> None:
        self._names.clear()
        self._layers, self._moments = [], []
        self._watch.enter_context(uncompiled())
        for name, module in leaf_modules(state.module):
            if not self._ignores(type(module)):
                self._watch_module(name, module)

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self._watch.close()
        if not self._moments:
            return
        low, mean, high = (torch.stack([value.to(state.device) for value in values]) for values in zip(*self._moments, strict=True))
        spread = torch.maximum(high - mean, mean - low)
        state.record(
            activation_mean_max=mean.abs().max(), activation_spread_max=spread.max(), activation_spread_min=spread.min()
        )
        if self._table is not None:
            self._table.add(state, self._layers, {"mean": mean, "spread": spread})
        self._moments = []

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

    def _ignores(self, cls: type) -> bool:
        return cls.__name__ in self.ignored or f"{cls.__module__}.{cls.__qualname__}" in self.ignored

    def _watch_module(self, name: str, module: nn.Module) -> None:
        def before(module: nn.Module, arguments: Any, named: Any) -> None:
            self._take(f"{name}.input", (arguments, named))

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            self._take(name, output)

        if self.inputs:
            self._watch.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._watch.callback(module.register_forward_hook(after).remove)

    @torch.no_grad()
    def _take(self, name: str, values: Any) -> None:
        for tensor in tensors(values):
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if self.sample_feature_map and tensor.dim() == 4:
                tensor = tensor[:, :, tensor.shape[2] // 2, tensor.shape[3] // 2]
            low, high = tensor.aminmax()
            self._moments.append((low.float(), tensor.mean(dtype=torch.float32), high.float()))
            before = self._names[name]
            self._names[name] += 1
            self._layers.append(f"{name}#{before}" if before else name)
