"""Reading numbers from rows, metrics and the state, for loggers."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from hooks.state import State

_PLAIN = {int, float}


def read(values: Sequence[Any]) -> list[float | None]:
    """Return each value as a number; None if it is not a number, or a time that the device has not
    measured yet.

    Tensors of one element on a GPU are read in one transfer, which synchronizes.
    """
    if _PLAIN.issuperset(map(type, values)):
        return [*values]
    on_device = [value for value in values if type(value) not in _PLAIN and is_on_device(value)]
    transferred = _transfer(on_device)
    numbers: list[float | None] = []
    for value in values:
        if type(value) in _PLAIN:
            numbers.append(value)
        elif is_on_device(value):
            numbers.append(next(transferred))
        else:
            numbers.append(_convert(value))
    return numbers


def _transfer(tensors: Sequence[Tensor]) -> Iterator[float]:
    """Return the numbers of tensors of one element, read in one transfer."""
    if not tensors:
        return iter(())
    device = tensors[0].device
    same = [tensor.detach().to(device, torch.float64).reshape(()) for tensor in tensors]
    return iter(torch.stack(same).tolist())


def read_numbers(columns: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric columns as numbers, read as `read` does."""
    numbers = read(list(columns.values()))
    pairs = zip(columns, numbers, strict=True)
    return {name: number for name, number in pairs if number is not None}


def get_learning_rates(state: State) -> dict[str, float]:
    """Return the rate of each parameter group: `lr`, `lr_1`, ...; of several optimizers `lr_d`,
    `lr_d_1`, ..."""
    rates = {}
    for name, optimizer in state.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            column = f"lr_{name}" if name else "lr"
            if index:
                column += f"_{index}"
            rates[column] = group["lr"]
    return read_numbers(rates)


def select_phase_metrics(state: State) -> dict[str, float]:
    """Return the metrics of the current phase as numbers; a task may compute them with NumPy or
    torch."""
    prefix = f"{state.phase}/"
    metrics = {name: value for name, value in state.metrics.items() if name.startswith(prefix)}
    return read_numbers(metrics)


def make_current_row(state: State) -> dict[str, Any]:
    """Return the columns of the current iteration so far, with its learning rates, before the
    scheduler steps."""
    return {**get_learning_rates(state), **state.row}


def is_on_device(value: Any) -> bool:
    """Return whether a value is a tensor of one element outside the CPU."""
    return isinstance(value, Tensor) and not value.is_cpu and value.numel() == 1


def _convert(value: Any) -> float | None:
    if isinstance(value, int | float):
        return value
    if isinstance(value, Tensor):
        return float(value.item()) if value.numel() == 1 else None
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "resolve") and value.ready():  # a time measured on the device
        return float(value.resolve())
    return None
