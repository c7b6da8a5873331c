from __future__ import annotations

import math

import pytest
import torch

from hooks import State
from orchestrator.cli.starter.starter import Confidence, Starter


def test_points_lie_about_their_spirals_and_are_the_same_each_time() -> None:
    """A point at radius r of arm k stands at the angle 2r + k pi; with hardly any noise it is found from where it
    stands."""
    task = Starter(noise=1e-4)
    for phase, samples in (("train", 800), ("val", 200)):
        points, labels = next(iter(torch.utils.data.DataLoader(task.data()[phase], samples)))
        again, _ = next(iter(torch.utils.data.DataLoader(task.data()[phase], samples)))
        assert torch.equal(points, again)
        radii = points.norm(dim=1)
        angles = 2 * radii + labels * math.pi
        off = torch.stack([angles.cos(), angles.sin()], 1) * radii[:, None] - points
        assert off.norm(dim=1).max() < 0.01
        assert 0.4 < labels.float().mean() < 0.6


def test_confidence_is_the_mean_of_the_largest_probability() -> None:
    state = State()
    state.output = torch.tensor([[0.0, math.log(3)], [math.log(9), 0.0]])
    Confidence().on_forward(state)
    assert float(state.row["confidence"]) == pytest.approx((3 / 4 + 9 / 10) / 2)
    Confidence(temperature=0.5).on_forward(state)
    assert float(state.row["confidence"]) == pytest.approx((9 / 10 + 81 / 82) / 2)
