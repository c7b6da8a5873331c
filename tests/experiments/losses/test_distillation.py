import math

import pytest
import torch

from experiments.losses.distillation import DistillationLoss
from hooks.self_supervised.distillation import DistillationOutput

STUDENT, TEACHER, LABELS = [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], [0, 2]


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize(("temperature", "weight"), [(4.0, 0.9), (1.0, 1.0), (3.0, 0.0)])
def test_it_is_the_papers_formula(temperature: float, weight: float) -> None:
    terms = []
    for student, teacher, label in zip(STUDENT, TEACHER, LABELS, strict=True):
        p, q = softmax(teacher, temperature), softmax(student, temperature)
        divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        terms.append((1 - weight) * -math.log(softmax(student, 1)[label]) + weight * temperature**2 * divergence)
    output = DistillationOutput(torch.tensor(STUDENT), torch.tensor(TEACHER))
    loss = DistillationLoss(temperature, weight)(output, torch.tensor(LABELS))
    assert loss.item() == pytest.approx(sum(terms) / 2, rel=1e-5)
