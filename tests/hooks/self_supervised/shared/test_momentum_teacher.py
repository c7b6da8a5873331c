"""Hooks with a momentum teacher, and when its momentum rises."""

import pytest
import torch
from torch import nn

from hooks import HOOKS, Hook, State
from hooks.errors import HookError
from hooks.self_supervised.shared.momentum_teacher import compute_completed_fraction, find_encoder
from orchestrator.testing import train
from tests.hooks.self_supervised.views import Miniature, pairs, plain


class Shares(Hook):
    """Keeps the completed share of the training at each optimizer step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_update(self, state: State) -> None:
        self.values.append(compute_completed_fraction(state))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("length", ["epochs", "steps"])
def test_completed_fraction_is_that_of_the_steps_before(accumulate: int, length: str) -> None:
    shares = Shares()
    steps = 12 // accumulate
    train(
        {"shares": shares},
        accumulate=accumulate,
        **{"epochs": {"epochs": 2}, "steps": {"steps": steps}}[length],
    )
    assert shares.values == pytest.approx([step / steps for step in range(steps)])


def test_a_part_is_found_by_name() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU())
    assert find_encoder(module, "0.0") is module[0][0]
    assert find_encoder(module, "") is module
    module[0].alias = module[0][0]
    assert find_encoder(module, "0.alias") is module[0][0]
    with pytest.raises(ValueError, match="Sequential has no part 'trunk'; set '' or one of: 0, 1"):
        find_encoder(module, "trunk")


@pytest.mark.parametrize("method", ["byol", "dino", "moco"])
def test_validation_changes_nothing(method: str) -> None:
    mine = Miniature(HOOKS[method](), method, batch_norm=True)
    mine.train(pairs(2))
    before = plain(mine.hook.state_dict())
    mine.phase("val")
    losses = [mine.forward(pairs(1, seed=9)[0]).item() for _ in range(2)]
    assert plain(mine.hook.state_dict()) == before
    assert losses[0] == losses[1]


@pytest.mark.parametrize("method", ["byol", "dino"])
def test_one_output_for_two_views_is_an_error(method: str) -> None:
    mine = Miniature(HOOKS[method](), method)
    mine.state.batch = pairs(1)[0]
    mine.state.output = [torch.zeros(8, 3)]
    with pytest.raises(HookError, match="1 output for 2 views"):
        mine.plan.fire("on_forward", mine.state)


@pytest.mark.parametrize("method", ["byol", "dino", "moco"])
def test_missing_encoder_error_lists_the_parts(method: str) -> None:
    hook = HOOKS[method](encoder="trunk")
    with pytest.raises(
        HookError, match="has no part 'trunk'; set '' or one of: encoder, predictor"
    ):
        Miniature(hook, method)
