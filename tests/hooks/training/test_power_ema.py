"""`ema` with `average: power`: averages as wide as std says, held against the sum of all weights by the paper's
profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hooks import Interval, State
from hooks.parts.power_average import exponent
from hooks.training.ema import EMA
from orchestrator.config.components import make_hooks
from orchestrator.errors import ConfigError
from orchestrator.testing import check_hook
from tests.hooks.training.averages import Trail, averages, checkpoint_of, resume
from tests.hooks.training.steps import batches, new_state, small_model, train

STDS = [0.05, 0.2]


def direct(values: list[list[Tensor]], steps: list[int], std: float) -> list[Tensor]:
    """The sum of what the weights were after these steps by (i^(g+1) - (i-1)^(g+1)) / t^(g+1), in float64."""
    edges = (torch.tensor([0, *steps], dtype=torch.float64) / steps[-1]) ** (exponent(std) + 1)
    return [
        torch.tensordot(edges.diff(), torch.stack([values[step - 1][place] for step in steps]), 1)
        for place in range(len(values[0]))
    ]


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, range(1, 15)),
        ({"every": Interval(3, "steps")}, [3, 6, 9, 12]),
        ({"begin": Interval(5, "steps")}, range(5, 15)),
        ({"std": 0.1}, range(1, 15)),
    ],
)
def test_each_average_is_the_sum_of_all_weights_by_its_profile(fields: dict[str, Any], steps: list[int]) -> None:
    """Where averaging begins later, the first weights stand for those before."""
    state, hook, trail = new_state(small_model()), EMA(**{"average": "power", "std": STDS, **fields}), Trail()
    train(state, {"ema": hook, "trail": trail}, batches(14))
    record = checkpoint_of(hook, state)["ema"]
    stds = [fields["std"]] if "std" in fields else STDS
    for std in stds:
        values = record["further"].get(str(std), record["model"])
        for (name, _), expected in zip(
            state.module.named_parameters(), direct(trail.values, list(steps), std), strict=True
        ):
            torch.testing.assert_close(values[name].double(), expected, rtol=1e-5, atol=1e-7)
    for ours, expected in zip(averages(hook, state), direct(trail.values, list(steps), stds[0]), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-7)


def test_power_average_counts_a_step_of_several_turns_once() -> None:
    """Both turns of a step take the same share, each of what it has trained."""
    module = small_model()
    halves = {"one": list(module[0].parameters()) + list(module[1].parameters()), "two": list(module[3].parameters())}
    hook, trail, state = EMA(average="power", std=STDS), Trail(), State(module=module, model=module, phase="train")
    for state.step in range(6):
        for state.turn, parameters in halves.items():
            state.optimizer = torch.optim.SGD(parameters)
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(state.step)))
            hook.on_update(state)
        trail.on_update(state)
    for ours, expected in zip(averages(hook, state), direct(trail.values, [*range(1, 7)], STDS[0]), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)
    assert hook.state_dict()["updates"] == {"": 6, "one": 6, "two": 6}


def test_checkpoint_with_other_stds_is_refused() -> None:
    state, hook = new_state(small_model()), EMA(average="power", std=STDS)
    train(state, {"ema": hook}, batches(2))
    with pytest.raises(
        ValueError,
        match=r"averages of std 0\.05, 0\.2, not 0\.1\. Set std to the checkpoint's value; ",
    ):
        resume(EMA(average="power", std=0.1), small_model(), checkpoint_of(hook, state))
    plain = EMA(decay=0.5)
    train(state, {"ema": plain}, batches(2))
    with pytest.raises(ValueError, match=r"averages of std none, not 0\.1"):
        resume(EMA(average="power", std=0.1), small_model(), checkpoint_of(plain, state))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"average": "power"}, r"average: power needs std, such as std: \[0.05, 0.10\]"),
        (
            {"average": "power", "std": 0.1, "decay": 0.9},
            "decay=0.9 has no effect with average: power; remove it",
        ),
        ({"average": "power", "std": [0.1, 0.1]}, "std has duplicate values"),
        ({"average": "power", "std": []}, "std"),
        ({"average": "power", "std": 0.3}, r"std.*0\.2886"),
        ({"average": "power", "std": [0.1, 0]}, "std"),
    ],
    ids=str,
)
def test_invalid_power_settings_are_refused_at_load(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_hooks({"ema": fields}, {})


def test_power_average_passes_check_hook() -> None:
    check_hook(EMA, fields={"average": "power", "std": STDS, "decay": 0.999, "snapshots": Interval(2, "steps")})
