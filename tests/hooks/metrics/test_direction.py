"""Which way metrics are better: told by names, and by experiments as they are written."""

import pytest
import torchmetrics
from torch import nn

from hooks.metrics.direction import (
    choose_main_metric,
    declared_modes,
    direction,
    directions,
    find_meter_modes,
    find_monitored_metrics,
    val_metrics,
)
from hooks.metrics.names import find_phase, list_known, nearest

MORE = """
val/accuracy val/ema/accuracy val/top1 val/f1 val/F1_score val/roc_auc coco/bbox_mAP_50
val/mIoU val/aAcc val/AR@100 val/averagePrecision val/R2 val/errors/accuracy samples_per_s
stats/samples_per_s/median val/tpr val/gap/accuracy
"""
LESS = """
val/loss val/loss_cls val/RMSE val/MSELoss val/stop_error val/ppl val/perplexity
step_s peak_rss_bytes stats/step_s/p95
"""
UNKNOWN = """
val/inaccuracy val/score val/top1_error val/stopping val/lossless val/ rabbits_per_acre
val/bits_per_second epoch lr val/tpr_at_fpr val/accuracy_gap val/loss_reduction val/f1_std
val/errors_per_s val/acc_s val/neg_mean_squared_error val/f1_threshold
"""


@pytest.mark.parametrize(("metrics", "mode"), [(MORE, "max"), (LESS, "min"), (UNKNOWN, None)])
def test_words_of_a_metric_decide_its_direction(metrics: str, mode: str | None) -> None:
    """MMEngine takes val/stop_error for a `top` accuracy."""
    assert {metric: direction(metric) for metric in metrics.split()} == dict.fromkeys(
        metrics.split(), mode
    )


def test_sweep_mode_precedes_checkpoint_mode_and_both_precede_names() -> None:
    checkpoint = {"best": ["val/accuracy", "val/score"], "mode": ["min", "max"]}
    early = {"type": "early_stopping", "monitor": "val/fit", "mode": "min"}
    hooks = {
        "checkpoint": checkpoint,
        "ema": None,
        "patience": early,
        "console": True,
        "wandb": {"mode": "offline"},
    }
    modes = declared_modes(
        {"sweep": {"metric": ["val/accuracy", "val/cost"], "mode": ["max", "min"]}, "hooks": hooks}
    )
    assert modes == {"val/accuracy": "max", "val/cost": "min", "val/score": "max", "val/fit": "min"}
    assert direction("val/score", modes) == "max"
    assert direction("val/accuracy", declared_modes({"hooks": hooks})) == "min"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"hooks": 3},
        {"hooks": {"checkpoint": {"best": [1], "mode": {}}}},
        {"sweep": {"metric": "a", "mode": [{}]}},
    ],
)
def test_invalid_mode_is_ignored(config: dict[str, object]) -> None:
    assert declared_modes(config) == {}


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
    assert val_metrics(reported) == [
        "val/accuracy",
        "val/score",
        "val/loss",
        "val/loss_cls",
        "val/aux_loss",
    ]
    assert choose_main_metric(reported, {}) == "val/accuracy"
    assert choose_main_metric(reported[:3], {}) == "val/loss"


def test_one_mode_for_all_or_one_for_each() -> None:
    assert directions(["a", "b"], "min") == {"a": "min", "b": "min"}
    assert directions(["a", "val/loss"], None, declared={"a": "max"}) == {
        "a": "max",
        "val/loss": "min",
    }
    with pytest.raises(ValueError, match="must be one mode, or one for each of"):
        directions(["a"], ["max", "min", "max"])


def test_misspelled_metric_gets_a_suggestion_before_advice_on_its_mode() -> None:
    with pytest.raises(
        ValueError, match=r"'val/acuracy' is better \(did you mean 'val/accuracy'\?\); set"
    ):
        directions(["val/acuracy"], None)
    with pytest.raises(
        ValueError, match="cannot tell whether a higher or a lower 'val/score' is better"
    ):
        directions(["val/score"], None)


def test_monitored_metrics_are_named_by_the_path_of_their_section() -> None:
    found = find_monitored_metrics(
        {
            "hooks": {"slow": {"type": "checkpoint", "best": "val/f1"}},
            "sweep": {"metric": "val/loss"},
        }
    )
    assert [(monitored.path, monitored.metrics) for monitored in found] == [
        ("sweep", ["val/loss"]),
        ("hooks.slow", ["val/f1"]),
    ]


THERE = (
    "train/loss",
    "train/accuracy",
    "val/loss",
    "val/accuracy",
    "val/ema/accuracy",
    "val/samples_per_s",
    "stats/step_s/p95",
)


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("val/acuracy", "val/accuracy"),
        ("val/acc", "val/accuracy"),
        ("Val/Accuracy", "val/accuracy"),
        ("val/ema/acuracy", "val/ema/accuracy"),
        ("val/emma/accuracy", "val/ema/accuracy"),
        ("vall/accuracy", "val/accuracy"),
        ("accuracy", "val/accuracy"),
        ("val_accuracy", "val/accuracy"),
        ("train/los", "train/loss"),
        ("stats/setp_s/p95", "stats/step_s/p95"),
        ("val/fid", None),  # the phase alone is no likeness
        ("val/f1", None),
    ],
)
def test_nearest_name_is_suggested(metric: str, meant: str | None) -> None:
    assert nearest(metric, THERE) == meant


def test_known_names_are_listed_with_the_nearest() -> None:
    assert (
        list_known(["val/loss", "val/accuracy"], "val/acuracy")
        == "available: val/loss, val/accuracy (did you mean 'val/accuracy'?)"
    )
    assert list_known([], "val/acuracy") == "available: none"


def test_a_phase_is_the_first_part_of_a_name() -> None:
    assert [
        find_phase(metric) for metric in ("val/ema/accuracy", "train/loss", "vall/loss", "loss")
    ] == [
        "val",
        "train",
        "",
        "",
    ]


class _Meters(nn.ModuleDict):
    """Looks like torchmetrics' MetricCollection: meters by name, and no direction of its own."""


def _make_meter(is_higher_better: bool | None) -> nn.Module:
    meter = nn.Identity()
    meter.higher_is_better = is_higher_better  # type: ignore[assignment]
    return meter


def test_meter_decides_before_the_name_and_after_the_experiment() -> None:
    parts = _Meters({"inner": _make_meter(False), "unknown": _make_meter(None)})
    meters = find_meter_modes(
        {
            "fit": _make_meter(False),
            "recall": _make_meter(False),
            "other": nn.Identity(),
            "all": parts,
        }
    )
    assert meters == {"fit": "min", "recall": "min", "all/inner": "min"}
    assert direction("val/fit", meters=meters) == "min"
    assert direction("test/noisy/ema/recall/0", meters=meters) == "min"
    assert direction("val/recall", {"val/recall": "max"}, meters) == "max"
    assert direction("val/other_recall", meters=meters) == "max"
    # Meters see no training batch.
    assert direction("train/recall", meters=meters) == "max"


@pytest.mark.parametrize(
    "meter", [torchmetrics.KLDivergence(), torchmetrics.R2Score(), torchmetrics.MeanMetric()]
)
def test_direction_of_a_meter_is_that_of_torchmetrics(meter: torchmetrics.Metric) -> None:
    expected = {True: {"m": "max"}, False: {"m": "min"}, None: {}}[meter.higher_is_better]
    assert find_meter_modes({"m": meter}) == expected
