"""Reading numbers from rows, metrics and the state, for loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from hooks.state import State

_PLAIN = {int, float}


def read(values: Sequence[Any]) -> list[float | None]:
    """Return each value as a number; None if it is not a number, or a time that the device has not measured yet.

    Tensors of one element on a GPU are read in one transfer, which synchronizes.
    """
    if _PLAIN.issuperset(map(type, values)):
        return list(values)
    on_device = [value for value in values if is_on_device(value)]
    numbers = iter(_transfer(on_device) if on_device else ())
    return [next(numbers) if is_on_device(value) else _number(value) for value in values]


def read_numbers(columns: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric columns as numbers, read as `read` does."""
    return {name: value for name, value in zip(columns, read(list(columns.values())), strict=True) if value is not None}


def learning_rates(state: State) -> dict[str, float]:
    """Return the rate of each parameter group: `lr`, `lr_1`, ...; of several optimizers `lr_d`, `lr_d_1`, ..."""
    rates = {}
    for name, optimizer in state.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            rates["_".join(["lr", *([name] if name else []), *([str(index)] if index else [])])] = group["lr"]
    return read_numbers(rates)


def phase_metrics(state: State) -> dict[str, float]:
    return {name: value for name, value in state.metrics.items() if name.startswith(f"{state.phase}/")}


def current_row(state: State) -> dict[str, Any]:
    """Return the columns of the current iteration so far, with its learning rates, before the scheduler steps."""
    return {**learning_rates(state), **state.row}


def is_on_device(value: Any) -> bool:
    """Return whether a value is a tensor of one element outside the CPU."""
    return isinstance(value, Tensor) and not value.is_cpu and value.numel() == 1


def _transfer(tensors: Sequence[Tensor]) -> list[float]:
    joined = torch.stack([value.detach().to(tensors[0].device, torch.float64).reshape(()) for value in tensors])
    values: list[float] = joined.tolist()
    return values


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return value
    if isinstance(value, Tensor):
        return float(value.item()) if value.numel() == 1 else None
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "resolve") and value.ready():
        return float(value.resolve())
    return None
