"""Moving averages of a module's parameters, and the checkpoints that a hook keeps as snapshots of
them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hooks.distributed import sharded_tensors as shards
from hooks.interval import Interval
from hooks.private_torch import foreach_lerp_
from hooks.state import State

Pairs = list[tuple[Tensor, Tensor]]
"""Averages with their weights."""


class AveragedParameters:
    """Average of a module's floating-point and complex parameters, which begins as a copy.

    Averages of bf16 and fp16 are fp32; of a sharded parameter, each rank averages its shard.
    """

    def __init__(self, module: nn.Module, device: str | None) -> None:
        self.parameters = {
            n: p for n, p in module.named_parameters() if p.is_floating_point() or p.is_complex()
        }
        weights = [shards.local(parameter) for parameter in self.parameters.values()]
        self.values = [copy_in_full_precision(weight, device) for weight in weights]
        self._pairs: Pairs = list(zip(self.values, weights, strict=True))
        self._by_turn: dict[str, tuple[list[Tensor], list[Tensor], Pairs]] = {}
        """Averages and weights of equal dtype and device, and the other pairs, of each turn."""

    @torch.no_grad()
    def update(self, weight: float, state: State) -> None:
        """Move the averages towards the weights by a fraction; in a turn, only those of the turn's
        parameters."""
        if state.turn not in self._by_turn:
            self._by_turn[state.turn] = _split(self._pairs_in_turn(state))
        averages, weights, others = self._by_turn[state.turn]
        if averages:
            foreach_lerp_(averages, weights, weight)
        for average, value in move_to_averages(others):
            average.lerp_(value.to(average), weight)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        yield from zip(self.parameters, self.values, strict=True)

    def by_name(self) -> dict[str, Tensor]:
        """Return the averages by parameter name, sharded as the parameters are."""
        return {
            name: shards.join_shards(average, self.parameters[name])
            for name, average in self.items()
        }

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Load averages by name; raises ValueError if they do not fit."""
        for name, average in self.items():
            restore_average(name, average, self.parameters[name], values)

    def _pairs_in_turn(self, state: State) -> Pairs:
        """Return the pairs whose weights the current turn trains, or all without turns."""
        if not state.turn:
            return self._pairs
        assert state.optimizer is not None
        trained = {
            id(parameter) for group in state.optimizer.param_groups for parameter in group["params"]
        }
        return [pair for pair in self._pairs if id(pair[1]) in trained]


def _split(pairs: Pairs) -> tuple[list[Tensor], list[Tensor], Pairs]:
    """Return averages and weights of equal dtype and device as two lists, and the other pairs."""
    equal, others = Pairs(), Pairs()
    for average, weight in pairs:
        same = (average.dtype, average.device) == (weight.dtype, weight.device)
        (equal if same else others).append((average, weight))
    return [average for average, _ in equal], [weight for _, weight in equal], others


def move_to_averages(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return each average with its value on the average's device; waits once for all copies from a
    GPU."""
    moved = [
        (average, value.to(average.device, non_blocking=value.is_cuda)) for average, value in pairs
    ]
    copied_from = {
        value.device for average, value in pairs if value.is_cuda and average.device != value.device
    }
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
    if name not in values or values[name].shape != reference.shape:
        problem = f"has shape {tuple(values[name].shape)}" if name in values else "is missing"
        raise ValueError(
            f"the checkpoint's average of '{name}' {problem}; the model needs {tuple(reference.shape)}"
        )
    average.copy_(shards.local(shards.like(values[name], reference)))


class Snapshots:
    """At most `max_count` checkpoints at an interval. If there were more, every second is dropped
    and the interval doubles. All ranks make the same decisions, from counters."""

    def __init__(self, interval: Interval, max_count: int) -> None:
        self.interval, self.max_count = interval, max_count
        self._numbers: dict[str, int] = {}
        """Number of each snapshot in the interval, by the checkpoint's name."""
        self._requested: int | None = None
        """Number of the requested snapshot whose save has not started."""
        self._saving: int | None = None
        """Number of the snapshot being written; None if the checkpoint is not a snapshot."""

    def request_if_due(self, state: State, owner: str) -> None:
        if not self.interval.due(state):
            return
        number = (
            state.epoch if self.interval.unit == "epochs" else state.step
        ) // self.interval.count
        if number % self._stride(number) == 0:
            self._requested = number
            state.request_checkpoint(f"snapshot of {owner}")

    def begin_save(self) -> None:
        """Assign the request to the current checkpoint; a background write may end after the next
        request."""
        self._saving, self._requested = self._requested, None

    def finish_save(self, state: State, owner: str, name: str) -> None:
        """Keep the stored checkpoint if it is a snapshot, and drop those that are now too many."""
        if self._saving is not None:
            self._retain(state, owner, {**self._numbers, name: self._saving})
            self._saving = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save; the checkpoint's own name is not known yet."""
        return {"numbers": self._numbers, "requested": self._requested}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._numbers, self._requested = state["numbers"], state["requested"]

    def restore(self, state: State, owner: str, name: str) -> None:
        """Continue from the checkpoint `name`: drop later snapshots, and the names of deleted
        ones."""
        known = {**self._numbers, **({} if self._requested is None else {name: self._requested})}
        stored = set(state.checkpoints.list_names()) if state.checkpoints else set()
        self._requested = None
        self._retain(
            state,
            owner,
            {snapshot: number for snapshot, number in known.items() if snapshot in stored},
        )

    def _retain(self, state: State, owner: str, numbers: Mapping[str, int]) -> None:
        stride = self._stride(max(numbers.values(), default=0))
        self._numbers = {
            snapshot: number for snapshot, number in numbers.items() if number % stride == 0
        }
        if state.checkpoints is not None:
            state.checkpoints.retain(owner, [*self._numbers])

    def _stride(self, number: int) -> int:
        """Return the distance of two snapshots in intervals, after a number of them."""
        stride = 1
        while number // stride > self.max_count:
            stride *= 2
        return stride
