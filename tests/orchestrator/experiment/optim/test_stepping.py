"""The hook that steps the schedulers, and settings of it that do not fit them."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.orchestrator.experiment.samples import refusal

COSINE = {"type": "CosineAnnealingLR"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"scheduler": {"type": "ReduceLROnPlateau"}},
            r"scheduler: ReduceLROnPlateau needs a metric; set hooks",
        ),
        (
            {"scheduler": {"type": "torch.optim.lr_scheduler:ReduceLROnPlateau"}},
            r"ReduceLROnPlateau needs a metric; set hooks.param_scheduler.monitor",
        ),
        (
            {"scheduler": COSINE, "hooks": {"param_scheduler": {"monitor": "val/loss"}}},
            "hooks.param_scheduler.monitor: has no effect: CosineAnnealingLR takes no metric",
        ),
        (
            {
                "scheduler": {"type": "ReduceLROnPlateau", "mode": "max"},
                "hooks": {"param_scheduler": {"monitor": "train/loss"}},
            },
            "scheduler.mode: must be min, because lower values of train/loss are better; got max",
        ),
        (
            {"scheduler": COSINE, "hooks": {"param_scheduler": None}},
            "scheduler: has no effect: the hook",
        ),
        (
            {"scheduler": COSINE, "hooks": {"param_scheduler": {"every": 0}}},
            "must be at least 1 to step the scheduler",
        ),
        (
            {"scheduler": COSINE, "hooks": {"other": {"type": "param_scheduler"}}},
            "hooks.other: steps each scheduler a second time, after hooks.param_scheduler",
        ),
        (
            {"hooks": {"param_scheduler": {"every": "1 step"}}},
            r"hooks.param_scheduler.every: has no effect without",
        ),
        (
            {"hooks": {"param_scheduler": {"monitor": "val/loss"}}},
            "hooks.param_scheduler.monitor: has no effect",
        ),
    ],
)
def test_setting_of_the_hook_that_does_not_fit_is_refused(
    more: Mapping[str, Any], message: str
) -> None:
    assert message in refusal(**more)
