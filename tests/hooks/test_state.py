from typing import Any

import numpy as np
import pytest
import torch

from hooks import State
from hooks.state import Weights


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (torch.zeros(32, 2), r"a tensor of shape \(32, 2\)"),
        (torch.zeros(0), r"a tensor of shape \(0,\)"),
        (np.zeros(3), r"an ndarray of shape \(3,\)"),
        ([0.5, 1.0], "a list"),
        ({"a": 1}, "a dict"),
    ],
)
def test_several_numbers_for_a_column_are_refused_where_they_are_recorded(
    value: Any, described: str
) -> None:
    state = State()
    with pytest.raises(ValueError, match=f"column 'x' got {described}; record one number per row"):
        state.record(x=value)
    assert state.row == {}


def test_a_column_of_the_loop_is_not_recorded_also_under_the_name_of_an_optimizer() -> None:
    """With an optimizer `s`, the column `forward` is `forward_s`, which is the loop's time."""
    state = State(loop_columns=frozenset({"forward_s", "loss"}), turn="s")
    for name, column in (("forward", "forward_s"), ("loss", "loss_s")):
        with pytest.raises(ValueError, match=f"the loop records the column `{column}`"):
            state.record(**{"own_first": 0.5, name: 0.5})
    state.record(own_forward=0.5)
    assert state.row == {"own_forward_s": 0.5}


@pytest.mark.parametrize(
    "value", [1, 0.5, True, "text", None, np.float32(2), np.zeros(1), np.array(3), torch.ones(1, 1)]
)
def test_one_value_is_recorded(value: Any) -> None:
    state = State()
    state.record(x=value)
    assert state.row["x"] == value


def test_reasons_are_recorded_as_text() -> None:
    state = State()
    error: Any = ValueError("it is enough")
    state.request_stop(error)
    state.request_pause(error)
    state.request_checkpoint(error)
    state.skip_update(error)
    reasons = [
        state.stop_reasons,
        state.pause_reasons,
        state.checkpoint_reasons,
        state.skip_reasons,
    ]
    assert reasons == [["it is enough"]] * 4


@pytest.mark.parametrize(
    ("hooks", "metric", "provider"),
    [
        ({"early_stopping": {"monitor": "val/ema/acc"}}, "val/ema/acc", "ema"),
        (
            {"checkpoint": {"best": "auto"}, "early_stopping": {"monitor": "val/ema/acc"}},
            "val/ema/acc",
            "ema",
        ),
        ({"checkpoint": {"best": "auto"}}, "", ""),
        ({}, "", ""),
    ],
)
def test_evaluated_weights_are_those_of_the_first_named_metric(
    hooks: dict[str, Any], metric: str, provider: str
) -> None:
    """`best: auto` names no metric, so that the next one that is monitored decides."""
    evaluations = {"": Weights(), "ema": Weights(provider="ema")}
    state = State(config={"hooks": hooks}, evaluations=evaluations)
    assert state.main_metric == metric
    assert state.find_evaluated_weights().provider == provider
