"""An optimizer's state, put back as it was saved."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load a state dict into an optimizer, with the types that its tensors were saved with.

    `load_state_dict` gives floating-point tensors the parameter's type: ASGD's and NAdam's factors, which are in single
    precision, come back as others where the parameters are not.
    """
    optimizer.load_state_dict(saved)
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        state = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.dtype != state[name].dtype:
                state[name] = value.to(state[name].device)
