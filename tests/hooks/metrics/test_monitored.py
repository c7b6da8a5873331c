"""Metrics and modes in experiments as they are written."""

import pytest

from hooks.metrics.direction import find_direction
from hooks.metrics.monitored import find_declared_modes, find_monitored_metrics


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
    modes = find_declared_modes(
        {"sweep": {"metric": ["val/accuracy", "val/cost"], "mode": ["max", "min"]}, "hooks": hooks}
    )
    assert modes == {"val/accuracy": "max", "val/cost": "min", "val/score": "max", "val/fit": "min"}
    assert find_direction("val/score", modes) == "max"
    assert find_direction("val/accuracy", find_declared_modes({"hooks": hooks})) == "min"


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
    assert find_declared_modes(config) == {}


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


@pytest.mark.parametrize("best", ["auto", ["auto"]])
def test_auto_is_no_name_of_a_metric(best: object) -> None:
    """Only `best` has the value `auto`; a metric of the sweep or of `monitor` has this name."""
    checkpoint = {"best": best, "mode": "max"}
    config = {"hooks": {"checkpoint": checkpoint, "early_stopping": {"monitor": "auto"}}}
    found = [
        (monitored.path, monitored.metrics, monitored.is_auto)
        for monitored in find_monitored_metrics(config)
    ]
    assert found == [("hooks.checkpoint", [], True), ("hooks.early_stopping", ["auto"], False)]
    assert find_declared_modes(config) == {}
