"""Moving averages of a module's parameters."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hooks.distributed import sharded_tensors as shards
from hooks.optimizer_name import OptimizerName
from hooks.private_torch import foreach_lerp_
from hooks.state import State

Pairs = list[tuple[Tensor, Tensor]]
"""Averages with their weights."""


class _Turn(NamedTuple):
    """The averages that are updated in a turn."""

    averages: list[Tensor]
    """Those whose weights have the same dtype and device, for one operation over all."""
    weights: list[Tensor]
    """Their weights."""
    others: Pairs


class AveragedParameters:
    """Average of a module's floating-point and complex parameters, which begins as a copy.

    Averages of bf16 and fp16 are fp32; of a sharded parameter, each rank averages its shard.
    """

    def __init__(self, module: nn.Module, device: str | None) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.is_floating_point() or parameter.is_complex()
        }
        weights = [shards.get_local(parameter) for parameter in self.parameters.values()]
        self.values = [copy_in_full_precision(weight, device) for weight in weights]
        self._pairs: Pairs = list(zip(self.values, weights, strict=True))
        self._turns: dict[OptimizerName, _Turn] = {}

    @torch.no_grad()
    def update(self, weight: float, state: State) -> None:
        """Move the averages towards the weights by a fraction; in a turn, only those of the turn's
        parameters."""
        if state.turn not in self._turns:
            self._turns[state.turn] = _split(self._select_pairs(state))
        turn = self._turns[state.turn]
        if turn.averages:
            foreach_lerp_(turn.averages, turn.weights, weight)
        for average, value in move_to_averages(turn.others):
            average.lerp_(value.to(average), weight)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        yield from zip(self.parameters, self.values, strict=True)

    def to_dict(self) -> dict[str, Tensor]:
        """Return the averages by parameter name, sharded as the parameters are."""
        return {
            name: shards.join_shards(average, self.parameters[name])
            for name, average in self.items()
        }

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Load averages by name; raises ValueError if they do not fit."""
        for name, average in self.items():
            restore_average(name, average, self.parameters[name], values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the module, and restore the raw weights on exit, even after an
        error."""
        # Clone shards, whose memory will be overwritten.
        raw_weights = [
            shards.get_local(parameter).clone() if shards.is_sharded(parameter) else parameter.data
            for parameter in self.parameters.values()
        ]
        try:
            self._assign(self.values)
            yield
        finally:
            self._assign(raw_weights)

    def _assign(self, values: Sequence[Tensor]) -> None:
        """Assign values to the parameters: swap the tensors, or copy into shards."""
        for parameter, value in zip(self.parameters.values(), values, strict=True):
            if shards.is_sharded(parameter):
                shards.get_local(parameter).copy_(value)
            else:
                parameter.data = value.to(parameter.data)

    def _select_pairs(self, state: State) -> Pairs:
        """Return the pairs whose weights the current turn trains, or all without turns."""
        if state.turn is None:
            return self._pairs
        assert state.optimizer is not None
        trained: set[int] = set()
        for group in state.optimizer.param_groups:
            trained.update(map(id, group["params"]))
        return [pair for pair in self._pairs if id(pair[1]) in trained]


def _split(pairs: Pairs) -> _Turn:
    averages: list[Tensor] = []
    weights: list[Tensor] = []
    others: Pairs = []
    for average, weight in pairs:
        if average.dtype == weight.dtype and average.device == weight.device:
            averages.append(average)
            weights.append(weight)
        else:
            others.append((average, weight))
    return _Turn(averages, weights, others)


def move_to_averages(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return each average with its value on the average's device; waits once for all copies from a
    GPU."""
    moved = []
    copied_from = set()
    for average, value in pairs:
        moved.append((average, value.to(average.device, non_blocking=value.is_cuda)))
        if value.is_cuda and average.device != value.device:
            copied_from.add(value.device)
    for device in copied_from:
        torch.cuda.current_stream(device).synchronize()
    return moved


def copy_in_full_precision(tensor: Tensor, device: str | None) -> Tensor:
    """Return a copy in fp32 or wider, on a device or on the tensor's."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(device=device or tensor.device, dtype=wide, copy=True)


def restore_average(
    name: str, average: Tensor, reference: Tensor, values: Mapping[str, Tensor]
) -> None:
    """Load an average by name; raises ValueError if its shape differs."""
    problem = ""
    if name not in values:
        problem = "is missing"
    elif values[name].shape != reference.shape:
        problem = f"has shape {tuple(values[name].shape)}"
    if problem:
        raise ValueError(
            f"the checkpoint's average of '{name}' {problem};"
            f" the model needs {tuple(reference.shape)}"
        )
    average.copy_(shards.get_local(shards.shard_like(values[name], reference)))
