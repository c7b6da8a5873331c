"""Which way metrics are better: told by names, and by experiments as they are written."""

from __future__ import annotations

import pytest

from hooks.metrics.direction import declared_modes, direction, directions, find_monitored_metrics


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val/accuracy", "max"),
        ("val/ema/accuracy", "max"),
        ("val/top1", "max"),
        ("val/f1", "max"),
        ("val/F1_score", "max"),
        ("val/roc_auc", "max"),
        ("coco/bbox_mAP_50", "max"),
        ("val/mIoU", "max"),
        ("val/aAcc", "max"),
        ("val/AR@100", "max"),
        ("val/averagePrecision", "max"),
        ("val/R2", "max"),
        ("val/loss", "min"),
        ("val/loss_cls", "min"),
        ("val/errors/accuracy", "max"),  # of a set called errors
        ("val/RMSE", "min"),
        ("val/MSELoss", "min"),
        ("val/stop_error", "min"),  # "top" is no word of it: MMEngine says greater
        ("val/ppl", "min"),
        ("val/perplexity", "min"),
        ("val/bits_per_character", "min"),
        ("bits_per_dim", "min"),
        ("step_s", "min"),
        ("peak_rss_bytes", "min"),
        ("stats/step_s/p95", "min"),
        ("samples_per_s", "max"),
        ("stats/samples_per_s/median", "max"),
    ],
)
def test_a_metric_s_own_words_tell(metric: str, mode: str) -> None:
    assert direction(metric) == mode


@pytest.mark.parametrize(
    "metric",
    [
        "val/inaccuracy",
        "val/score",
        "val/top1_error",
        "val/stopping",
        "val/lossless",
        "val/",
        "rabbits_per_acre",
        "val/bits_per_second",
        "epoch",
        "lr",
    ],
)
def test_what_no_word_tells_is_not_known(metric: str) -> None:
    assert direction(metric) is None


def test_the_sweep_comes_before_the_checkpoint_and_that_before_words() -> None:
    checkpoint = {"best": ["val/accuracy", "val/score"], "rule": ["less", "greater"]}
    early = {"type": "early_stopping", "monitor": "val/fit", "mode": "min"}
    hooks = {"checkpoint": checkpoint, "ema": None, "patience": early, "console": True, "wandb": {"mode": "offline"}}
    modes = declared_modes({"sweep": {"metric": ["val/accuracy", "val/cost"], "mode": ["max", "min"]}, "hooks": hooks})
    assert modes == {"val/accuracy": "max", "val/cost": "min", "val/score": "max", "val/fit": "min"}
    assert direction("val/score", modes) == "max"
    assert direction("val/accuracy", declared_modes({"hooks": hooks})) == "min"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"hooks": 3},
        {"hooks": {"checkpoint": {"best": [1], "mode": {}}}},
        {"sweep": {"metric": "val/x", "mode": [{}]}},
    ],
)
def test_what_is_written_wrong_says_nothing(config: dict[str, object]) -> None:
    assert declared_modes(config) == {}


def test_one_mode_for_all_or_one_for_each() -> None:
    assert directions(["a", "b"], "min") == {"a": "min", "b": "min"}
    assert directions(["a", "val/loss"], None, declared={"a": "max"}) == {"a": "max", "val/loss": "min"}
    with pytest.raises(ValueError, match="3 modes for 1 metrics"):
        directions(["a"], ["max", "min", "max"])


def test_monitored_metrics_are_named_by_the_path_of_their_section() -> None:
    found = find_monitored_metrics(
        {"hooks": {"slow": {"type": "checkpoint", "best": "val/f1"}}, "sweep": {"metric": "val/loss"}}
    )
    assert [(monitored.path, monitored.metrics) for monitored in found] == [
        ("sweep", ["val/loss"]),
        ("hooks.slow", ["val/f1"]),
    ]
