"""References for averages of weights, and the checkpoints that they pass through."""

import io
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from hooks import Hook, State
from hooks.training.ema import EMA
from tests.hooks.training.steps import new_state


class Reference(Hook):
    """torch's AveragedModel, updated after each optimizer step."""

    def __init__(self, module: nn.Module, average: Any) -> None:
        self.averaged = AveragedModel(module, multi_avg_fn=average)
        self.module = module

    def on_update(self, state: State) -> None:
        self.averaged.update_parameters(self.module)


class Trail(Hook):
    """Every value the weights had after a step, in float64."""

    def __init__(self) -> None:
        self.values: list[list[Tensor]] = []

    def on_update(self, state: State) -> None:
        self.values.append([parameter.detach().double() for parameter in state.module.parameters()])


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def averages(hook: EMA, state: State) -> list[Tensor]:
    with hook.applied(state):
        return weights(state.module)


def assert_averages(hook: EMA, state: State, expected: Iterable[Tensor]) -> None:
    """Assert that a hook's averages are expected values in float64, up to rounding."""
    own = [average.double() for average in averages(hook, state)]
    torch.testing.assert_close(own, list(expected), rtol=1e-5, atol=1e-6)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def checkpoint_of(hook: EMA, state: State) -> dict[str, Any]:
    checkpoint = {
        "name": "last",
        "model": state.module.state_dict(),
        "hook": hook.state_dict(),
        "rank": hook.rank_state_dict(),
    }
    hook.on_save(state, checkpoint)
    return dict(through_a_file(checkpoint))


def resume(hook: EMA, module: nn.Module, checkpoint: dict[str, Any], **fields: Any) -> State:
    """What the loop does: model, hook's state, on_load, on_start."""
    module.load_state_dict(checkpoint["model"])
    state = new_state(module, **fields)
    if checkpoint["hook"]:
        hook.load_state_dict(checkpoint["hook"])
    if checkpoint["rank"]:
        hook.load_rank_state_dict(checkpoint["rank"])
    hook.on_load(state, checkpoint)
    hook.on_start(state)
    return state
