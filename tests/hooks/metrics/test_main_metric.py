"""Which metric is the main one."""

from typing import Any

import pytest

from hooks.metrics.main_metric import choose_main_metric, find_best_metric, list_val_metrics


def test_speed_and_memory_are_no_main_metric() -> None:
    reported = [
        "val/loss",
        "val/score",
        "val/samples_per_s",
        "val/iteration_s",
        "val/peak_rss_bytes",
    ]
    assert choose_main_metric(reported, {}) == "val/loss"


def test_losses_and_their_terms_come_after_other_metrics() -> None:
    """A phase reports the terms of a loss first, then their sum and the metrics. MMEngine's `auto`
    takes the first metric of its evaluator, which has no losses."""
    reported = ["val/loss_cls", "val/aux_loss", "val/loss", "val/accuracy", "val/score"]
    assert list_val_metrics(reported) == [
        "val/accuracy",
        "val/score",
        "val/loss",
        "val/loss_cls",
        "val/aux_loss",
    ]
    assert choose_main_metric(reported, {}) == "val/accuracy"
    assert choose_main_metric(reported[:3], {}) == "val/loss"


REPORTED = ["val/f1", "val/loss", "val/acc"]
LOSS = {"best": "val/loss"}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({"checkpoint": LOSS}, ("val/loss", "min")),
        ({"checkpoint": {"best": ["val/acc", "val/f1"]}}, ("val/acc", "max")),
        ({"checkpoint": {**LOSS, "mode": "max"}}, ("val/loss", "max")),
        # A hook of the user may have a key `best`, too.
        ({"zoo": {"type": "m:Z", "best": "val/acc"}, "checkpoint": LOSS}, ("val/loss", "min")),
        ({"checkpoint": {"best": "auto"}}, ("val/f1", "max")),
        ({"checkpoint": {"best": "auto", "mode": "min"}}, ("val/f1", "min")),
        ({"checkpoint": {"best": ["auto"], "mode": ["min"]}}, ("val/f1", "min")),
        ({"checkpoint": {}, "stop": {"monitor": "val/acc", "mode": "min"}}, ("val/acc", "min")),
        ({}, ("val/f1", "max")),
    ],
)
def test_best_metric_is_that_of_the_checkpoint_hook(
    hooks: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert find_best_metric(REPORTED, {"hooks": hooks}) == expected


def test_best_metric_is_that_of_the_stored_checkpoint() -> None:
    """The hook's `best` may have changed since it was stored."""
    assert find_best_metric(REPORTED, {"hooks": {"checkpoint": LOSS}}, "val/acc") == (
        "val/acc",
        "max",
    )


def test_best_metric_needs_a_known_direction() -> None:
    assert find_best_metric(["val/score"], {}) is None
    assert find_best_metric(["val/score"], {"hooks": {"checkpoint": {"best": "auto"}}}) is None
    assert find_best_metric(["val/score"], {}, meters={"score": "min"}) == ("val/score", "min")
    assert find_best_metric(["train/acc"], {}) is None
