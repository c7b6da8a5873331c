import math
from pathlib import Path

import pytest
import torch

from experiments.cart_pole import CartPole, find_standing, push
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import experiment


def test_a_push_is_that_of_the_equations() -> None:
    """Barto, Sutton and Anderson (1983), without friction, by hand for one cart."""
    place, speed, angle, spin, force = 0.1, -0.2, 0.05, 0.3, -10.0
    common = (force + 0.1 * 0.5 * spin**2 * math.sin(angle)) / 1.1
    falls = (9.8 * math.sin(angle) - math.cos(angle) * common) / (
        0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
    )
    accelerates = common - 0.1 * 0.5 * falls * math.cos(angle) / 1.1
    expected = [
        place + 0.02 * speed,
        speed + 0.02 * accelerates,
        angle + 0.02 * spin,
        spin + 0.02 * falls,
    ]
    carts = torch.tensor([[place, speed, angle, spin]], dtype=torch.float64)
    assert push(carts, torch.tensor([0]))[0].tolist() == pytest.approx(expected, rel=1e-12)
    assert find_standing(
        torch.tensor([[2.3, 0, 0.2, 0], [2.5, 0, 0, 0], [0, 0, -0.21, 0]])
    ).tolist() == [
        True,
        False,
        False,
    ]


def test_policy_learns_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    def reports(epochs: int, restored: str | None = None) -> list[float]:
        store = CheckpointStore(Storage(tmp_path))
        loop = CustomLoop(
            CartPole(updates=5),
            experiment(epochs=epochs),
            {"checkpoint": Checkpoint(keep=None)},
            RunContext(store=store),
        )
        if restored:
            loop.restore(restored)
        return [report.metrics["train/lasted"] for report in loop.run()]

    lasted = reports(5)
    assert lasted[-1] > 2 * lasted[0]
    # The checkpoint is from before the report of its epoch, which is handed up again.
    assert reports(5, "epoch-0003") == lasted[2:]
