from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from experiments.losses.ibot import IBOTLoss
from hooks.self_supervised.ibot import IBOTOutput


def cross_entropy(teacher: Tensor, student: Tensor, centre: Tensor, temperature: float) -> float:
    """-sum_k p(k) log q(k) for one row each, by hand."""

    def softmax(values: list[float]) -> list[float]:
        powers = [math.exp(value) for value in values]
        return [power / sum(powers) for power in powers]

    p = softmax([(t - c) / temperature for t, c in zip(teacher.tolist(), centre[0].tolist(), strict=True)])
    q = softmax([s / 0.1 for s in student.tolist()])
    return -sum(a * math.log(b) for a, b in zip(p, q, strict=True))


def test_it_is_the_papers_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (
        [(torch.rand(4, 3, generator=generator), torch.rand(4, 5, 2, generator=generator)) for _ in range(count)]
        for count in (3, 2)
    )
    centre, patch_centre = torch.tensor([[0.3, -0.2, 0.1]]), torch.tensor([[0.2, -0.1]])
    masks = [torch.rand(4, 5, generator=generator) < 0.5 for _ in range(2)]
    masks[0][1] = False
    views = [
        cross_entropy(teacher[i][0][sample], student[j][0][sample], centre, 0.05)
        for i in range(2)
        for j in range(3)
        if i != j
        for sample in range(4)
    ]
    samples = []
    for i in range(2):
        for sample in range(4):
            hidden = [n for n in range(5) if masks[i][sample, n]]
            losses = [
                cross_entropy(teacher[i][1][sample, n], student[i][1][sample, n], patch_centre, 0.06) for n in hidden
            ]
            samples.append(sum(losses) / max(1, len(hidden)))
    loss = IBOTLoss(0.1, view_weight=0.5, patch_weight=2.0)(
        IBOTOutput(student, teacher, centre, patch_centre, 0.05, 0.06), masks
    )
    assert len(views) == 4 * 4
    assert loss.item() == pytest.approx(0.5 * sum(views) / len(views) + 2.0 * sum(samples) / len(samples), rel=1e-5)
