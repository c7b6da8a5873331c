import math

import pytest
import torch

from experiments.losses.moco import MoCoLoss
from hooks.self_supervised.moco import MoCoOutput


def unit(*angles: float) -> torch.Tensor:
    return torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])


def test_it_is_the_papers_formula() -> None:
    queries, keys, queue = (0.1, 2.0), (0.4, 1.2), (0.0, 1.0, 3.0)
    terms = []
    for query, key in zip(queries, keys, strict=True):
        positive = math.exp(math.cos(query - key) / 0.2)
        negatives = sum(math.exp(math.cos(query - other) / 0.2) for other in queue)
        terms.append(-math.log(positive / (positive + negatives)))
    loss = MoCoLoss(temperature=0.2)(MoCoOutput(unit(*queries), unit(*keys), unit(*queue)))
    assert loss.item() == pytest.approx(sum(terms) / 2, rel=1e-5)
