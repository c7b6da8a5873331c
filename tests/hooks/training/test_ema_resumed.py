"""What a checkpoint holds of averages, and what goes on from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hooks import Interval
from hooks.training.ema import EMA
from tests.hooks.training.averages import Trail, averages, checkpoint_of, resume, same, through_a_file, weights
from tests.hooks.training.steps import batches, new_state, small_model, train


def test_checkpoint_has_loadable_averages_and_raw_weights() -> None:
    """MMEngine writes the averages as state_dict and hides the raw weights, or the other way round."""
    state, hook = new_state(small_model()), EMA(decay=0.9)
    train(state, {"ema": hook}, batches(5))
    checkpoint = checkpoint_of(hook, state)
    assert same(list(checkpoint["model"].values()), list(state.module.state_dict().values()))
    fresh = small_model(seed=9)
    fresh.load_state_dict(checkpoint["ema"]["model"])
    assert same(weights(fresh), averages(hook, state))
    assert (checkpoint["hook"]["updates"], checkpoint["ema"]["decay"]) == ({"": 5}, 0.9)
    assert checkpoint["ema"]["exact"] == {}  # nothing is stored twice
    assert checkpoint["rank"] == {}


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"average": "stochastic", "decay": 0},
        {"average": "annealing", "gamma": 3},
        {"begin": Interval(4, "steps")},
        {"every": Interval(3, "steps")},
        {"buffers": "ema"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_continues_bit_for_bit(cut: int, fields: dict[str, Any], dtype: torch.dtype) -> None:
    data = [(batch.to(dtype),) for (batch,) in batches(9)]
    straight, whole = EMA(**{"decay": 0.9, **fields}), new_state(small_model().to(dtype))
    train(whole, {"ema": straight}, data[:cut])
    checkpoint = checkpoint_of(straight, whole)
    assert whole.optimizer is not None
    optimizer = through_a_file(whole.optimizer.state_dict())
    train(whole, {"ema": straight}, data[cut:])

    hook = EMA(**{"decay": 0.9, **fields})
    state = resume(hook, small_model(seed=5).to(dtype), checkpoint, step=cut, iteration=cut)
    assert state.optimizer is not None
    state.optimizer.load_state_dict(optimizer)
    train(state, {"ema": hook}, data[cut:])
    assert hook.state_dict() == straight.state_dict()
    expected, found = checkpoint_of(straight, whole)["ema"], checkpoint_of(hook, state)["ema"]
    for part in ("model", "exact"):
        assert found[part].keys() == expected[part].keys()
        assert all(torch.equal(found[part][name], value) for name, value in expected[part].items())


def test_average_added_at_a_resume_starts_from_the_restored_weights() -> None:
    state = new_state(small_model())
    train(state, {}, batches(3))
    checkpoint = through_a_file({"model": state.module.state_dict(), "hook": {}, "rank": {}})
    hook, trail = EMA(decay=0.5), Trail()
    new = resume(hook, small_model(seed=5), checkpoint, step=3, iteration=3)
    with new.evaluations[""](new):
        assert same(weights(new.module), weights(state.module))
    train(new, {"ema": hook, "trail": trail}, batches(2))
    for ours, first, second in zip(averages(hook, new), *trail.values, strict=True):
        torch.testing.assert_close(ours.double(), 0.5 * first + 0.5 * second)
