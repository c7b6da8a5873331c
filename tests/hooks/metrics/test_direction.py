"""Which way metrics are better: told by names and meters."""

import pytest
import torchmetrics
from torch import nn

from hooks.metrics.direction import choose_modes, find_direction, find_meter_modes

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
    assert {metric: find_direction(metric) for metric in metrics.split()} == dict.fromkeys(
        metrics.split(), mode
    )


def test_one_mode_for_all_or_one_for_each() -> None:
    assert choose_modes(["a", "b"], "min") == {"a": "min", "b": "min"}
    assert choose_modes(["a", "val/loss"], None, declared={"a": "max"}) == {
        "a": "max",
        "val/loss": "min",
    }
    with pytest.raises(ValueError, match="must be one mode, or one for each of"):
        choose_modes(["a"], ["max", "min", "max"])


def test_misspelled_metric_gets_a_suggestion_before_advice_on_its_mode() -> None:
    with pytest.raises(
        ValueError, match=r"'val/acuracy' is better \(did you mean 'val/accuracy'\?\); set"
    ):
        choose_modes(["val/acuracy"], None)
    with pytest.raises(
        ValueError, match="cannot tell whether a higher or a lower 'val/score' is better"
    ):
        choose_modes(["val/score"], None)


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
    assert find_direction("val/fit", meters=meters) == "min"
    assert find_direction("test/noisy/ema/recall/0", meters=meters) == "min"
    assert find_direction("val/recall", {"val/recall": "max"}, meters) == "max"
    assert find_direction("val/other_recall", meters=meters) == "max"
    # Meters see no training batch.
    assert find_direction("train/recall", meters=meters) == "max"


@pytest.mark.parametrize(
    "meter", [torchmetrics.KLDivergence(), torchmetrics.R2Score(), torchmetrics.MeanMetric()]
)
def test_direction_of_a_meter_is_that_of_torchmetrics(meter: torchmetrics.Metric) -> None:
    expected = {True: {"m": "max"}, False: {"m": "min"}, None: {}}[meter.higher_is_better]
    assert find_meter_modes({"m": meter}) == expected
