"""Restoring of an optimizer's state without a change of dtypes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load a state dict into an optimizer, with the dtypes that its tensors were saved with.

    `load_state_dict` converts floating-point tensors to the parameter's dtype, which would change the
    single-precision factors of ASGD and NAdam.
    """
    optimizer.load_state_dict(saved)
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        state = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.dtype != state[name].dtype:
                state[name] = value.to(state[name].device)


def with_settings_of(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state with this optimizer's current settings, such as the learning rates."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    groups = [{**group, **now} for group, now in zip(saved["param_groups"], settings, strict=True)]
    return {**saved, "param_groups": groups}
