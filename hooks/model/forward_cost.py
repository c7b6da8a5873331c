"""The cost of a forward pass: FLOPs and activations of a model and of each of its modules."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from hooks.private_torch import CPU_ATTENTION

_COUNTED_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose outputs are activations."""
_MISSING_FLOPS = {
    CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
}
"""FLOPs of an operator that torch's table lacks."""


@dataclass
class ForwardCost:
    """Cost of forward passes in a module and its submodules."""

    flops: int = 0
    activations: int = 0
    """Output elements of linear layers and convolutions."""

    def divide(self, samples: int) -> dict[str, int]:
        """Return the cost of a sample by name; torch counts a multiply-add as two FLOPs."""
        totals = {"flops": self.flops, "macs": self.flops / 2, "activations": self.activations}
        return {f"{name}_per_sample": round(total / samples) for name, total in totals.items()}


def measure_cost(model: nn.Module, run: Callable[[], object]) -> dict[str, ForwardCost]:
    """Run a function that calls a model, and return the cost by module name, `""` for the model.

    The model's cost includes that of a function that calls only some of its modules.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_MISSING_FLOPS)
    with _without_fused_layers(model), counter, _watching(model, counter) as costs:
        run()
    costs[""].flops = counter.get_total_flops()
    return costs


@contextmanager
def _watching(model: nn.Module, counter: FlopCounterMode) -> Iterator[dict[str, ForwardCost]]:
    """Yield the costs by module name, which grow with each call of a module within this context."""
    costs = {name: ForwardCost() for name, _ in model.named_modules()}

    def watch(name: str, layer: nn.Module) -> None:
        flops_before: list[int] = []

        def enter(_: nn.Module, inputs: Any) -> None:
            flops_before.append(counter.get_total_flops())

        def leave(_: nn.Module, inputs: Any, output: Any) -> None:
            costs[name].flops += counter.get_total_flops() - flops_before.pop()
            if isinstance(layer, _COUNTED_LAYERS):
                for container in _list_containers(name):
                    costs[container].activations += output.numel()

        handles.enter_context(layer.register_forward_pre_hook(enter))
        handles.enter_context(layer.register_forward_hook(leave))

    with ExitStack() as handles:
        for name, layer in model.named_modules():
            watch(name, layer)
        yield costs


def _list_containers(name: str) -> list[str]:
    """Return the names of a module and of the modules that contain it: `a.b`, `a` and `""`."""
    containers = [name]
    while name:
        name = name.rpartition(".")[0]
        containers.append(name)
    return containers


@contextmanager
def _without_fused_layers(model: nn.Module) -> Iterator[None]:
    """Turn off torch's fused transformer layers, and the fused LSTMs of cuDNN and oneDNN, which
    hide their work from counters and module hooks."""
    libraries: list[Any] = []
    if any(isinstance(part, nn.RNNBase) for part in model.modules()):
        libraries = [torch.backends.cudnn, torch.backends.mkldnn]
    # Not by their `flags`, which set other options too.
    were_enabled = [library.enabled for library in libraries]
    had_fastpath = torch.backends.mha.get_fastpath_enabled()

    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for library in libraries:
            library.enabled = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(had_fastpath)
        for library, was_enabled in zip(libraries, were_enabled, strict=True):
            library.enabled = was_enabled
