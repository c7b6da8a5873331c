import math

import pytest
import torch

from experiments.losses.byol import BYOLLoss
from hooks.self_supervised.byol import BYOLOutput


def rows(length: float, *angles: float) -> torch.Tensor:
    return length * torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])


def test_it_is_the_papers_formula_whatever_the_lengths() -> None:
    predictions, targets = [(0.1, 2.0), (0.5, 1.0)], [(0.3, 2.2), (0.0, 1.7)]
    output = BYOLOutput([rows(3, *p) for p in predictions], [rows(0.5, *t) for t in targets])
    first = [2 - 2 * math.cos(p - t) for p, t in zip(predictions[0], targets[1], strict=True)]
    second = [2 - 2 * math.cos(p - t) for p, t in zip(predictions[1], targets[0], strict=True)]
    assert BYOLLoss()(output).item() == pytest.approx((sum(first) + sum(second)) / 2, rel=1e-5)
