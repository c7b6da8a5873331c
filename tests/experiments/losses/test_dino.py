import math

import pytest
import torch

from experiments.losses.dino import DINOLoss
from hooks.self_supervised.dino import DINOOutput


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def test_it_is_the_papers_formula_over_all_pairs_of_different_views() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = ([torch.randn(4, 3, generator=generator) for _ in range(count)] for count in (3, 2))
    centre = torch.tensor([[0.3, -0.2, 0.1]])
    terms = []
    for i, target in enumerate(teacher):
        for j, prediction in enumerate(student):
            if i == j:
                continue
            for sample in range(4):
                p = softmax([(target[sample, k].item() - centre[0, k].item()) / 0.05 for k in range(3)])
                q = softmax([prediction[sample, k].item() / 0.1 for k in range(3)])
                terms.append(-sum(a * math.log(b) for a, b in zip(p, q, strict=True)))
    loss = DINOLoss(temperature=0.1)(DINOOutput(student, teacher, centre, 0.05))
    assert len(terms) == 4 * 4
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
