"""What hooks with a momentum teacher have in common."""

from __future__ import annotations

import pytest
import torch

from hooks import HOOKS
from hooks.plan import HookError
from tests.hooks.self_supervised.views import Miniature, pairs, plain


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
    mine.state.batch, mine.state.output = pairs(1)[0], [torch.zeros(8, 3)]
    with pytest.raises(HookError, match="1 outputs for 2 views"):
        mine.plan.fire("on_forward", mine.state)


@pytest.mark.parametrize("method", ["byol", "dino", "moco"])
def test_missing_encoder_error_lists_the_parts(method: str) -> None:
    hook = HOOKS[method](encoder="trunk")
    with pytest.raises(HookError, match="has no part 'trunk', it has encoder, predictor"):
        Miniature(hook, method)
