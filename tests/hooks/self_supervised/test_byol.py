import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from hooks.self_supervised.byol import BYOL
from tests.hooks.self_supervised.views import Miniature, Network, follow, pairs

STEPS = 5


def original(batches: list[Any], base: float, total: int) -> tuple[list[float], Network]:
    """The losses and the target network of BYOL as its authors publish it (byol_experiment.py)."""
    torch.manual_seed(0)
    online = Network(batch_norm=True)
    torch.manual_seed(0)
    target = Network(batch_norm=True)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    losses = []
    for step, ((first, second), _) in enumerate(batches):
        p1, p2 = online([first, second])
        with torch.no_grad():
            z1 = target.encoder(first)
            z2 = target.encoder(second)

        def regression_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((functional.normalize(x, dim=1) - functional.normalize(y, dim=1)) ** 2).sum(
                dim=1
            )

        loss = (regression_loss(p1, z2) + regression_loss(p2, z1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tau = 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2
        follow(target.encoder, online.encoder, tau)
        losses.append(loss.item())
    return losses, target


def test_losses_and_target_network_are_those_of_the_original() -> None:
    batches = pairs(STEPS)
    losses, target = original(batches, base=0.8, total=2 * STEPS)
    mine = Miniature(BYOL(momentum=0.8), "byol", batch_norm=True, epochs=2, length=STEPS)
    mine.train(batches)
    assert mine.losses == pytest.approx(losses, abs=1e-6)
    for name, value in target.encoder.state_dict().items():
        torch.testing.assert_close(mine.hook.state_dict()["teacher"][name], value, msg=name)


def test_the_momentum_is_recorded_and_rises_from_its_base_towards_one() -> None:
    mine = Miniature(BYOL(momentum=0.8), "byol", epochs=1, length=4)
    mine.train(pairs(4))
    expected = [0.8, 0.9 - 0.1 * math.cos(math.pi / 4), 0.9, 0.9 + 0.1 * math.cos(math.pi / 4)]
    assert [row["teacher_momentum"] for row in mine.rows] == pytest.approx(expected)
