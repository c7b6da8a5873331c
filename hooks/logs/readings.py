"""What a logger reads of an iteration when it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from hooks.state import State


def numbers(columns: Mapping[str, Any]) -> dict[str, float]:
    """The numeric columns as Python numbers. Tensors are read in one transfer, which waits for the device."""
    tensors = {name: value for name, value in columns.items() if isinstance(value, Tensor) and value.numel() == 1}
    read: dict[str, float] = {}
    if tensors:
        device = next((value.device for value in tensors.values() if value.device.type != "cpu"), torch.device("cpu"))
        joined = torch.stack([value.detach().to(device, torch.float64).reshape(()) for value in tensors.values()])
        read = dict(zip(tensors, joined.tolist(), strict=True))
    return {
        name: read[name] if name in read else value if isinstance(value, int | float) else float(value)
        for name, value in columns.items()
        if name in read or isinstance(value, Real)
    }


def readings(state: State, losses: Collection[float | Tensor]) -> dict[str, float]:
    """The row's numeric columns, with the mean of `losses` as `loss`, and `lr` of the first parameter group where no
    hook recorded one. Waits for the device: call it at a rhythm only."""
    columns = dict(state.row)
    if "lr" not in columns and state.optimizer is not None:
        columns["lr"] = state.optimizer.param_groups[0]["lr"]
    if losses:
        columns["loss"] = sum(losses) / len(losses)
    return numbers(columns)
