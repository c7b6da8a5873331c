import math
from collections.abc import Iterable
from typing import Any

import pytest

from hooks import State
from hooks.training.early_stopping import EarlyStopping


def stops_at(hook: EarlyStopping, values: Iterable[float]) -> int | None:
    """The index of the first value after which the hook asks for the end."""
    state = State(phase="val")
    for index, value in enumerate(values):
        state.metrics = {hook.monitor: value}
        hook.on_phase_end(state)
        if state.stop_reasons:
            return index
    return None


def a_hook(**fields: Any) -> EarlyStopping:
    return EarlyStopping(**{"monitor": "val/accuracy", "mode": "max", "patience": 3, **fields})


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("max", [1, 2, 3, 2, 2, 4, 3, 3, 3, 9], 8),
        ("min", [3, 2, 1, 2, 2, 0.5, 3, 3, 3, 0], 8),
        ("max", [3, 2, 1, 0], 3),
        ("max", [0.5] * 10, 3),  # MMEngine with min_delta 0 never stops here
        (
            "max",
            [0.8, 0.85, 0.9, 0.95, 0.97, 0.99, 0.991, 0.992],
            None,
        ),  # MMEngine's default min_delta of 0.1 does
        ("min", [0, 1, 2, 3], 3),
    ],
)
def test_patience_counts_values_in_a_row(
    mode: str, values: list[float], expected: int | None
) -> None:
    assert stops_at(a_hook(mode=mode), values) == expected


def test_improvement_must_exceed_min_delta() -> None:
    assert stops_at(a_hook(min_delta=0.25, patience=1), [1.0, 1.25]) == 1
    assert stops_at(a_hook(min_delta=0.25, patience=1), [1.0, 1.375, 1.75]) is None
    assert stops_at(a_hook(min_delta=0.25, patience=1, mode="min"), [1.0, 0.75]) == 1
    # measured from the best, not from the value before
    assert stops_at(a_hook(min_delta=0.25, patience=3), [1.0, 1.125, 1.25, 1.375]) is None


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_non_finite_value_is_never_an_improvement(mode: str, first: float) -> None:
    hook = a_hook(mode=mode, check_finite=False, patience=2)
    assert stops_at(hook, [first, 0.5]) is None
    assert hook.state_dict() == {"best": 0.5, "wait": 0}
    assert stops_at(hook, [math.nan, math.nan]) == 1


@pytest.mark.parametrize(("mode", "value"), [("max", math.inf), ("min", -math.inf)])
def test_infinite_value_does_not_reach_stopping_threshold(mode: str, value: float) -> None:
    hook = a_hook(mode=mode, check_finite=False, stopping_threshold=0.5)
    assert stops_at(hook, [value]) is None
    assert hook.state_dict() == {"best": None, "wait": 1}
    assert stops_at(hook, [0.5]) == 0


def test_patience_ends_a_run_without_any_finite_value() -> None:
    hook = a_hook(check_finite=False, patience=2)
    state = State(phase="val", metrics={hook.monitor: math.nan})
    hook.on_phase_end(state)
    hook.on_phase_end(state)
    assert state.stop_reasons == ["val/accuracy was not finite in 2 values"]


def test_only_the_phase_that_gives_the_metric_counts() -> None:
    hook = a_hook(monitor="val/ema/accuracy")
    state = State(metrics={"val/ema/accuracy": 0.5, "val/accuracy": 0.1, "train/loss": 1.0})
    for state.phase in ("val", "train", "train", "test"):
        hook.on_phase_end(state)
    assert hook.state_dict() == {"best": 0.5, "wait": 0}


def test_a_missing_metric_is_an_error_at_the_first_end_of_its_phase() -> None:
    state = State(phase="train", metrics={"train/loss": 1.0})
    hook = a_hook(monitor="val/top1")
    hook.on_phase_end(state)
    state.phase = "val"
    state.metrics = {"train/loss": 1.0, "val/accuracy": 0.5}
    with pytest.raises(
        ValueError,
        match="monitor: there is no metric 'val/top1'; available: train/loss, val/accuracy",
    ):
        hook.on_phase_end(state)


def test_direction_follows_from_mode_or_name() -> None:
    assert stops_at(EarlyStopping("val/ppl", patience=1), [3, 2, 1, 2]) == 3
    assert stops_at(EarlyStopping("val/score", mode="min", patience=1), [3, 2, 1, 2]) == 3
    assert stops_at(EarlyStopping("val/ppl", mode="max", patience=1), [1, 2, 3, 2]) == 3
    with pytest.raises(
        ValueError,
        match="whether a higher or a lower 'val/score' is better; set `mode: max` or `mode: min`",
    ):
        EarlyStopping("val/score")
