"""The average of parameters of any type, on any device, as the EMA hook keeps it."""

import math
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


MASK = torch.full((3, 3), -math.inf).triu(1)


class Masked(nn.Module):
    """A mask with minus infinity, and a buffer that two parts share."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.first.register_buffer("mask", MASK.clone())
        self.first.register_buffer("level", torch.zeros(1))
        self.second.register_buffer("level", self.first.level)


def _average_masked(*levels: float) -> dict[str, Any]:
    """Return the average after a step with each level of the shared buffer."""
    module = Masked()
    state = new_state(module)
    hook = EMA(decay=0.75, buffers="ema")
    for level in levels:
        module.first.level.fill_(level)
        hook.on_update(state)
        state.step += 1
    with hook.applied(state):
        averaged = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert module.second.level is module.first.level
    return averaged


def test_infinities_of_a_mask_stay() -> None:
    assert torch.equal(_average_masked(0.0, 0.0, 0.0)["first.mask"], MASK)


def test_buffer_that_parts_share_has_its_average_in_all_of_them() -> None:
    averaged = _average_masked(0.0, 4.0)
    assert averaged["first.level"].item() == 1.0
    assert averaged["second.level"].item() == 1.0
