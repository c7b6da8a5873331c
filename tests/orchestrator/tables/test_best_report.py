"""The best of several reports, and whether training diverged in them."""

import math
from itertools import product

import pytest

from orchestrator.tables.best_report import find_best_report, find_divergence

VALUES = (math.nan, math.inf, -math.inf, 0.5, 3)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_best_value_is_finite(mode: str) -> None:
    for values in product(VALUES, repeat=3):
        best = find_best_report([{"val/score": value} for value in values], "val/score", mode)
        finite = [value for value in values if math.isfinite(value)]
        assert (best and best["val/score"]) == (
            (max if mode == "max" else min)(finite) if finite else None
        )


@pytest.mark.parametrize("name", ["train/loss", "train/loss_d", "val/score"])
def test_training_diverged_if_the_last_value_is_not_finite(name: str) -> None:
    """Since the first of the last values that are not; what was before and came back does not
    count."""
    for values in product(VALUES, repeat=3):
        reports = [
            {name: value, "val/loss": 0.1, "epoch": epoch} for epoch, value in enumerate(values)
        ]
        diverged = find_divergence([*reports, {"test/accuracy": math.nan, "epoch": 9}], "val/score")
        if math.isfinite(values[-1]):
            assert diverged is None
            continue
        first = (
            max([epoch for epoch, value in enumerate(values) if math.isfinite(value)], default=-1)
            + 1
        )
        assert (
            str(diverged)
            == f"{name} is {'NaN' if math.isnan(values[-1]) else values[-1]} since epoch {first + 1}"
        )


def test_other_metrics_do_not_count() -> None:
    assert (
        find_divergence(
            [{"val/other": math.nan, "train/accuracy": math.nan, "step": 1}], "val/score"
        )
        is None
    )
    assert find_divergence([], None) is None
