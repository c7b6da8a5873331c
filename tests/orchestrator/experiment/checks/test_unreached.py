"""Settings of hooks that a run never reaches."""

from typing import Any

import pytest

from orchestrator.experiment.checks.unreached import find_unreached_settings
from orchestrator.experiment.load import make_experiment
from tests.orchestrator.experiment.samples import HERE

STOPPING = {"monitor": "val/loss", "patience": 3}


def warnings(hooks: dict[str, Any], **more: Any) -> list[str]:
    data = {"name": "line", "task": f"{HERE}:Line", "epochs": 3, "hooks": hooks}
    return [
        str(problem).partition(" is never reached")[0]
        for problem in find_unreached_settings(make_experiment(data | more))
    ]


STEPS = {"epochs": None, "steps": 20}


@pytest.mark.parametrize(
    ("hooks", "more", "warning"),
    [
        ({"ema": {"begin": 3}}, {}, "hooks.ema.begin: 3 epochs"),
        ({"ema": {"begin": "20 steps"}}, STEPS, "hooks.ema.begin: 20 steps"),
        ({"checkpoint": {"begin": 4}}, {}, "hooks.checkpoint.begin: 4"),
        ({"stop": {"type": "early_stopping", **STOPPING}}, {}, "hooks.stop.patience: 3"),
        (
            {"early_stopping": {**STOPPING, "patience": 2}},
            {"validate_every": 2},
            "hooks.early_stopping.patience: 2",
        ),
    ],
)
def test_unreached_setting_is_named(
    hooks: dict[str, Any], more: dict[str, Any], warning: str
) -> None:
    assert warnings(hooks, **more) == [warning]


SPACE = {"metric": "train/loss", "mode": "min", "space": {"epochs": {"grid": [1, 9]}}}


@pytest.mark.parametrize(
    ("hooks", "more"),
    [
        ({"ema": {"begin": 2}}, {}),
        ({"ema": {"begin": "100 steps"}}, {}),
        ({"ema": {"begin": 5}}, {"sweep": SPACE}),
        (
            {"ema": {"begin": 5}},
            {"sweep": {**SPACE, "space": {"hooks.ema.begin": {"grid": [0, 1]}}}},
        ),
        ({"checkpoint": {"begin": 3}}, {}),
        ({"early_stopping": {**STOPPING, "patience": 2}}, {}),
        ({"early_stopping": {**STOPPING, "monitor": "train/loss"}}, {}),
    ],
)
def test_setting_that_may_be_reached_is_not_named(
    hooks: dict[str, Any], more: dict[str, Any]
) -> None:
    assert warnings(hooks, **more) == []
