import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from hooks.self_supervised.dino import DINO
from tests.hooks.self_supervised.views import Miniature, Network, follow, pairs

EPOCHS = 3
LENGTH = 2
SCHEDULES = {"momentum": 0.8, "warmup_temperature": 0.04, "temperature": 0.1, "warmup_epochs": 3}


def original(
    batches: list[Any], teacher: Network, student: Network, crops: int
) -> tuple[list[float], torch.Tensor]:
    """The losses and the center of DINO as its authors publish it (main_dino.py), in one
    process."""
    center = torch.zeros(1, 3)
    warmup = np.linspace(0.04, 0.1, 3)
    iters = np.arange(EPOCHS * LENGTH)
    momentum_schedule = 1 + 0.5 * (0.8 - 1) * (1 + np.cos(np.pi * iters / len(iters)))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    losses = []
    for it, (views, _) in enumerate(batches):
        student_out = [out / 0.1 for out in student(views)]
        with torch.no_grad():
            teacher_output = torch.cat([teacher.encoder(view) for view in views[:2]])
        teacher_out = functional.softmax(
            (teacher_output - center) / warmup[it // LENGTH], dim=-1
        ).chunk(2)
        total_loss = torch.zeros(())
        n_loss_terms = 0
        for iq, q in enumerate(teacher_out):
            for v in range(crops):
                if v == iq:
                    continue
                total_loss = (
                    total_loss
                    + torch.sum(-q * functional.log_softmax(student_out[v], dim=-1), dim=-1).mean()
                )
                n_loss_terms += 1
        loss = total_loss / n_loss_terms
        center = center * 0.9 + torch.sum(teacher_output, dim=0, keepdim=True) / len(
            teacher_output
        ) * (1 - 0.9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher.encoder, student.encoder, float(momentum_schedule[it]))
        losses.append(loss.item())
    return losses, center


def crops(count: int) -> list[Any]:
    """Batches of four views, the third and fourth being small crops."""
    generator = torch.Generator().manual_seed(3)
    return [
        (list(torch.randn(4, 8, 5, generator=generator)), torch.arange(8)) for _ in range(count)
    ]


def network() -> Network:
    torch.manual_seed(0)
    return Network(batch_norm=False)


def test_losses_center_and_teacher_are_those_of_the_original() -> None:
    batches = crops(EPOCHS * LENGTH)
    teacher = network()
    losses, center = original(batches, teacher, network(), crops=4)
    mine = Miniature(DINO(**SCHEDULES), "dino", epochs=EPOCHS, length=LENGTH)
    mine.train(batches)
    assert mine.losses == pytest.approx(losses, abs=1e-5)
    torch.testing.assert_close(mine.hook.state_dict()["center"], center)
    for name, value in teacher.encoder.state_dict().items():
        torch.testing.assert_close(mine.hook.state_dict()["teacher"][name], value, msg=name)
    assert [row["teacher_temperature"] for row in mine.rows] == pytest.approx(
        [0.04, 0.04, 0.07, 0.07, 0.1, 0.1]
    )
    assert mine.rows[3]["teacher_momentum"] == pytest.approx(1 - 0.1 * (1 + math.cos(math.pi / 2)))


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [(0, [0.1] * 4), (1, [0.04, 0.1, 0.1, 0.1]), (3, [0.04, 0.07, 0.1, 0.1])],
)
def test_the_temperature_warms_up_as_linspace(warmup: int, expected: list[float]) -> None:
    mine = Miniature(DINO(temperature=0.1, warmup_temperature=0.04, warmup_epochs=warmup), "dino")
    seen = []
    for epoch in range(4):
        mine.state.epoch = epoch
        mine.forward(pairs(1)[0])
        seen.append(mine.outputs[-1].teacher_temperature)
    assert seen == pytest.approx(expected)
    assert seen[:warmup] == pytest.approx(np.linspace(0.04, 0.1, warmup).tolist())
