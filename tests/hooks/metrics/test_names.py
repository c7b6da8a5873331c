"""Names of metrics and phases."""

import pytest

from hooks.metrics.names import find_phase, list_known, nearest


def test_a_long_list_of_metrics_is_cut_with_those_of_validation_first() -> None:
    names = [*(f"train/m{number}" for number in range(9)), "val/loss"]
    shown = ", ".join(["val/loss", *names[:7]])
    assert list_known(names) == f"available: {shown} and 2 more"


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


@pytest.mark.parametrize(
    ("metric", "names", "meant"),
    [
        ("acc", ["train/acc", "train/loss"], "train/acc"),
        ("acc", ["train/acc", "val/acc"], "val/acc"),
        ("los", ["train/acc", "val/noisy/loss"], "val/noisy/loss"),
        ("fid", ["train/acc", "train/loss"], None),
    ],
)
def test_name_without_a_phase_is_looked_for_in_all(
    metric: str, names: list[str], meant: str | None
) -> None:
    assert nearest(metric, names) == meant


def test_known_names_are_listed_with_the_nearest() -> None:
    assert (
        list_known(["val/loss", "val/accuracy"], "val/acuracy")
        == "available: val/loss, val/accuracy (did you mean 'val/accuracy'?)"
    )
    assert (
        list_known(["val/loss"], "val/los", "val/lss")
        == "available: val/loss (did you mean 'val/loss'?)"
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
