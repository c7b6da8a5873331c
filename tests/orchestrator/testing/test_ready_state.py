"""The state of a loop, ready for any event."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from hooks import GradientClip
from orchestrator.errors import TaskError
from orchestrator.testing import SmallTask, ready_state


class Detached(SmallTask):
    def loss(self, output: torch.Tensor, batch: Any) -> torch.Tensor:
        return super().loss(output, batch).detach()


def test_state_of_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(TaskError, match=r"^loss\(\) returns a loss without a gradient: .*\.py:\d+"):
        ready_state(Detached())


def test_ready_state_is_that_of_the_first_gradients() -> None:
    state = ready_state(epoch=3)
    points, labels = state.batch
    expected = functional.cross_entropy(state.output, labels)
    assert state.loss is not None
    assert torch.equal(state.loss, expected)
    assert all(parameter.grad is not None for parameter in state.module.parameters())
    assert (state.phase, state.epoch, state.batch_size, len(points)) == ("train", 3, 4, 4)
    GradientClip(max_norm=0.001).on_gradients(state)
    assert torch.nn.utils.get_total_norm(state.gradients()).item() == pytest.approx(0.001, rel=1e-3)
