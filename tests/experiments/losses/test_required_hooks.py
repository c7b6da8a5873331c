from __future__ import annotations

from typing import Any

import pytest

from experiments.losses.byol import BYOLLoss
from experiments.losses.deepcluster import DeepClusterLoss
from experiments.losses.dino import DINOLoss
from experiments.losses.distillation import DistillationLoss
from experiments.losses.ibot import IBOTLoss
from experiments.losses.moco import MoCoLoss
from experiments.losses.swav import SwAVLoss

LOSSES = {
    "byol": BYOLLoss(),
    "deepcluster": DeepClusterLoss(),
    "dino": DINOLoss(),
    "distillation": DistillationLoss(),
    "ibot": IBOTLoss(),
    "moco": MoCoLoss(),
    "swav": SwAVLoss(),
    "swav_momentum": SwAVLoss(momentum_encoder=True),
}


@pytest.mark.parametrize(("hook", "loss"), LOSSES.items())
def test_each_loss_requires_the_hook_that_makes_its_input(hook: str, loss: Any) -> None:
    assert loss.required_hooks() == {hook: {}}
