from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import Interval, State
from hooks.training.freeze_parameters import FreezeParameters
from tests.hooks.training.steps import batches, new_state, small_model, train

DRAGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
"""An optimizer's options that move a parameter without a gradient, where there is one to act on."""


def a_state(module: nn.Module, optimizer: Any = torch.optim.SGD, **fields: Any) -> State:
    options = DRAGS if optimizer is torch.optim.SGD else {"lr": 0.1, "weight_decay": 0.1}
    return new_state(module, optimizer=optimizer(module.parameters(), **options), **fields)


def values(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


EVERYTHING = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("fields", "frozen"),
    [
        ({"patterns": ["0.weight"]}, {"0.weight"}),
        ({"patterns": ["0.*"]}, {"0.weight", "0.bias"}),
        (
            {"patterns": ["*.bias", "[01].weight"]},
            {"0.bias", "1.bias", "3.bias", "0.weight", "1.weight"},
        ),
        (
            {"patterns": [r"[13]\.(weight|bias)"], "match": "regex"},
            {"1.weight", "1.bias", "3.weight", "3.bias"},
        ),
        ({"patterns": "?.weight"}, {"0.weight", "1.weight", "3.weight"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else " ".join(sorted(value)),
)
def test_frozen_parameters_do_not_move_and_the_others_do(
    fields: dict[str, Any], frozen: set[str], optimizer: Any
) -> None:
    module = small_model()
    state = a_state(module, optimizer)
    hook = FreezeParameters(**fields)
    hook.on_start(state)
    before = values(module)
    train(state, {"freeze": hook}, batches(4))
    assert moved(before, values(module)) == EVERYTHING - frozen


@pytest.mark.parametrize(
    ("until", "frozen_steps"), [("3 steps", 3), ("2 epochs", 4), (0, 0), (None, 6)]
)
def test_parameters_are_frozen_until_their_step_or_epoch(until: Any, frozen_steps: int) -> None:
    module = small_model()
    hook = FreezeParameters(["3.weight"], until=None if until is None else Interval.parse(until))
    state = a_state(module)
    hook.on_start(state)
    begin = values(module)["3.weight"]
    still = []
    for step in range(6):
        state.epoch = step // 2
        train(state, {"freeze": hook}, batches(1, seed=step))
        still.append(torch.equal(values(module)["3.weight"], begin))
    assert still == [True] * frozen_steps + [False] * (6 - frozen_steps)


def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    state = State(module=nn.ModuleDict({"backbone": small_model(), "head": nn.Linear(2, 2)}))
    with pytest.raises(
        ValueError,
        match=r"pattern 'bakbone.0.weight' matches no parameter; did you mean backbone.0.weight",
    ):
        FreezeParameters(["head.*", "bakbone.0.weight"]).on_start(state)
    with pytest.raises(
        ValueError,
        match=r"pattern '#' matches no parameter; available: backbone.0.weight, .*head.bias$",
    ):
        FreezeParameters(["#"]).on_start(state)
    with pytest.raises(ValueError, match=r"pattern 'backbone' matches no parameter"):
        FreezeParameters(["backbone"]).on_start(state)


def test_invalid_regular_expression_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"pattern '\*.bias' is not a regular expression: nothing to repeat.*;"
        r" for \* and \? write match: glob",
    ):
        FreezeParameters(["*.bias"], match="regex")
