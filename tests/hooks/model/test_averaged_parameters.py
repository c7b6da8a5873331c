"""The average of parameters of any type, on any device, as the EMA hook keeps it."""

from typing import Any

import pytest
import torch
from torch import nn

from hooks import State
from hooks.training.ema import EMA
from tests.hooks.training.averages import averages, checkpoint_of
from tests.hooks.training.steps import batches, new_state, small_model, train


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_averaged_in_fp32(dtype: torch.dtype) -> None:
    """In bf16 a step of 0.001 towards 2 is lost to rounding; ClassyVision leaves such weights out
    altogether."""
    module = nn.Linear(3, 2).to(dtype)
    state = State(module=module, model=module, phase="train")
    hook = EMA(decay=0.999)
    nn.init.constant_(module.weight, 1.0)
    hook.on_update(state)
    nn.init.constant_(module.weight, 2.0)
    for _ in range(700):
        hook.on_update(state)
    expected = torch.tensor(2 - 0.999**700, dtype=torch.float64)
    record = checkpoint_of(hook, state)["ema"]
    torch.testing.assert_close(
        record["exact"]["weight"].double(), expected.expand(2, 3), rtol=1e-4, atol=0
    )
    assert record["model"]["weight"].dtype == dtype
    torch.testing.assert_close(
        record["model"]["weight"].double(), expected.expand(2, 3), rtol=4e-3, atol=0
    )
    with hook.applied(state):
        assert module(torch.ones(1, 3, dtype=dtype)).dtype == dtype
    assert torch.equal(module.weight, torch.full((2, 3), 2.0, dtype=dtype))


def test_frozen_weights_stay_and_unfrozen_ones_are_averaged() -> None:
    module = small_model()
    first: Any = module[0]
    first.requires_grad_(False)
    frozen = first.weight.clone()
    state = new_state(module)
    hook = EMA(decay=0.5)
    train(state, {"ema": hook}, batches(3))
    assert torch.equal(averages(hook, state)[0], frozen)
    first.weight.requires_grad_(True)
    train(state, {"ema": hook}, batches(1))
    torch.testing.assert_close(averages(hook, state)[0], 0.5 * frozen + 0.5 * first.weight.detach())


def test_tied_weights_are_averaged_once_and_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first = module[0]
    second = module[1]
    second.weight = first.weight
    state = new_state(module)
    hook = EMA(decay=0.5)
    train(state, {"ema": hook}, batches(3))
    with hook.applied(state):
        assert second.weight is first.weight
    record = checkpoint_of(hook, state)["ema"]["model"]
    assert torch.equal(record["0.weight"], record["1.weight"])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda model: model.pop("0.weight"), "is missing"),
        (lambda model: None, r"has shape \(6, 4\)"),
    ],
)
def test_averages_of_another_shape_are_refused(change: Any, found: str) -> None:
    state = new_state(small_model())
    hook = EMA()
    train(state, {"ema": hook}, batches(2))
    checkpoint = checkpoint_of(hook, state)
    change(checkpoint["ema"]["model"])
    other = small_model() if "missing" in found else nn.Sequential(nn.Linear(5, 6))
    resumed = EMA()
    resumed.load_state_dict(checkpoint["hook"])
    with pytest.raises(
        ValueError, match=f"the checkpoint's average of '0.weight' {found}; the model needs"
    ):
        resumed.on_load(new_state(other), checkpoint)
