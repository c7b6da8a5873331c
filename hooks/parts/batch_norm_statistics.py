"""BatchNorm statistics, recomputed over training data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hooks.parts import coalesced_collectives as coalesced
from hooks.parts.eval_mode import evaluating
from hooks.state import State

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
RunningNorm = BatchNorm | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
"""Layers that can normalize with running statistics."""


def tracked_layers(module: nn.Module) -> list[BatchNorm]:
    """Return the BatchNorm layers with running statistics, without those frozen in evaluation mode."""
    layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm) and layer.running_mean is not None]
    return [layer for layer in layers if layer.training or not module.training]


def refuse_sync(module: nn.Module, option: str) -> None:
    """Raise ValueError for SyncBatchNorm layers, whose ranks would wait for each other in `recompute`."""
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        raise ValueError(f"{option} does not work with SyncBatchNorm, whose ranks wait for each other at every batch")


@torch.no_grad()
def recompute(state: State, batches: Iterable[Any] | None = None) -> None:
    """Set running mean and variance of all BatchNorm layers to those of their inputs with the present weights.

    One pass over `batches` of this rank, by default over its shuffled training data. Sums are added over ranks, so each
    value has the same weight, which torch.optim.swa_utils.update_bn does not ensure. The variance is unbiased. Random
    states, modes, num_batches_tracked and frozen layers do not change. Collective. Source: "Rethinking 'Batch' in
    BatchNorm" (Wu and Johnson, 2021).
    """
    layers = tracked_layers(state.module)
    if not layers:
        return
    sums = [torch.zeros(2 * layer.num_features + 1, dtype=torch.float64, device=state.device) for layer in layers]
    with _observing(layers, sums), evaluating(state):
        for batch in state.fresh_batches("train", shuffled=True) if batches is None else batches:
            state.forward(state.module, batch)
    coalesced.total(sums)
    for layer, layer_sums in zip(layers, sums, strict=True):
        _set_statistics(layer, layer_sums)


@contextmanager
def _observing(layers: list[BatchNorm], sums: list[Tensor]) -> Iterator[None]:
    """Add up the inputs of each layer: sums and squares per channel, and the number of values."""

    def add(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()
        of_layer[layer] += torch.cat([values.sum(1), values.square().sum(1), values.new_full((1,), values.shape[1])])
        layer.training = values.shape[1] > 1  # by its batch's statistics, as in training, where it has any

    of_layer: dict[nn.Module, Tensor] = dict(zip(layers, sums, strict=True))
    with ExitStack() as handles:
        for layer in layers:
            handles.enter_context(layer.register_forward_pre_hook(add))
        yield


def _set_statistics(layer: BatchNorm, sums: Tensor) -> None:
    total, squares, (count,) = torch.split(sums, [layer.num_features, layer.num_features, 1])
    if count == 0 or layer.running_mean is None or layer.running_var is None:
        return  # the forward pass does not use this layer
    mean = total / count
    layer.running_mean.copy_(mean)
    layer.running_var.copy_((squares / count - mean.square()).clamp(min=0) * count / (count - 1).clamp(min=1))
