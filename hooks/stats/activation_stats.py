"""Statistics of activations."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hooks.model.layers import list_tensors
from hooks.state import State
from hooks.stats.shared.layer_monitor import LayerMonitor


@dataclass
class ActivationStats(LayerMonitor):
    """Measure the outputs of the model's leaf modules in some training iterations: mean, and spread
    max |x - mean|.

        activation_stats: {every: 100 steps, ignored: [ReLU, GELU]}

    Each rank measures its own batch. Values by layer go to Parquet files under `activations/`
    (`pandas.read_parquet`: rank, epoch, iteration, layer, mean, spread) and to
    `state.info["activations"]`. A second output or call of a layer is `<layer>#1`, and so on. A
    measured iteration runs a compiled model uncompiled.

    Columns:
        * `activation_mean_max`: Largest |mean| over the layers.
        * `activation_spread_max`, `activation_spread_min`: Largest and smallest spread over the
          layers.

    Source: VISSL ActivationStatisticsMonitor, Composer ActivationMonitor.
    """

    ignored: tuple[str, ...] = ("ReLU",)
    """Module types to skip, such as `ReLU` or `torch.nn.modules.activation.ReLU`."""
    sample_feature_map: bool = False
    """Only the center pixel of feature maps of shape (N, C, H, W), which is cheaper."""

    folder: ClassVar[str] = "activations"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names: Counter[str] = Counter()
        self._layers: list[str] = []
        self._moments: list[tuple[Tensor, Tensor, Tensor]] = []

    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        cls = type(layer)
        if {cls.__name__, f"{cls.__module__}.{cls.__qualname__}"}.intersection(self.ignored):
            return

        def take_output(layer: nn.Module, arguments: Any, output: Any) -> None:
            self._take(name, output)

        self.until_read(layer.register_forward_hook(take_output))

    def read(self, state: State) -> None:
        if not self._moments:
            return
        low, mean, high = [_stack(values, state) for values in zip(*self._moments, strict=True)]
        spread = torch.maximum(high - mean, mean - low)
        state.record(
            activation_mean_max=mean.abs().max(),
            activation_spread_max=spread.max(),
            activation_spread_min=spread.min(),
        )
        self.keep(state, self._layers, {"mean": mean, "spread": spread})
        self._names.clear()
        self._layers = []
        self._moments = []

    @torch.no_grad()
    def _take(self, name: str, values: Any) -> None:
        for tensor in list_tensors(values):
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if self.sample_feature_map and tensor.dim() == 4:
                tensor = tensor[:, :, tensor.shape[2] // 2, tensor.shape[3] // 2]
            low, high = tensor.aminmax()
            self._moments.append((low.float(), tensor.mean(dtype=torch.float32), high.float()))
            before = self._names[name]
            self._names[name] += 1
            self._layers.append(f"{name}#{before}" if before else name)


def _stack(values: Iterable[Tensor], state: State) -> Tensor:
    """Join numbers, which may lie on several devices of a model, to a vector."""
    return torch.stack([value.to(state.device) for value in values])
