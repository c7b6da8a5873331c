"""The model is used while it trains, and the training does not notice."""

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hooks import State
from hooks.model.eval_mode import borrowing, evaluating, get_first_batch


class Careless(nn.Module):
    """Draws numbers, counts its calls in place, and puts another tensor in a buffer's place, in
    whatever mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2).eval()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x[0] + torch.rand(()) + random.random() + np.random.rand()
        return self.norm(self.layer(x))


@pytest.mark.parametrize("fails", [False, True])
def test_modes_buffers_and_random_states_are_restored(fails: bool) -> None:
    module = Careless().train()
    module.norm.eval()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    modes = [part.training for part in module.modules()]
    places = [buffer.data_ptr() for buffer in module.buffers()]
    drawn: list[Any] = [
        (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    ]
    with (
        pytest.raises(ZeroDivisionError) if fails else nullcontext(),
        evaluating(State(module=module)),
    ):
        assert not any(part.training for part in module.modules())
        assert not module(torch.ones(3, 2)).requires_grad
        if fails:
            raise ZeroDivisionError
    drawn.append(
        (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    )
    assert drawn[0] == drawn[1]
    assert [part.training for part in module.modules()] == modes
    assert [buffer.data_ptr() for buffer in module.buffers()] == places
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_a_borrowed_model_keeps_its_modes() -> None:
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with borrowing(State(module=module)):
        assert [part.training for part in module.modules()] == [True, True, False]
        module.eval()
    assert [part.training for part in module.modules()] == [True, True, False]


def test_a_compiled_model_calls_module_hooks() -> None:
    """BatchNorm statistics, FLOPs and exports need them, and code that was compiled before does not
    know them."""
    module = nn.Sequential(nn.Linear(2, 2)).eval()
    calls: list[Any] = []
    compiled: Any = torch.compile(module, backend="eager")
    with torch.no_grad():
        compiled(torch.ones(3, 2))
    handle = module[0].register_forward_pre_hook(lambda *call: calls.append(call))
    with evaluating(State(module=module)), handle:
        compiled(torch.ones(3, 2))
    assert len(calls) == 1


def test_missing_training_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no training batch to take as an example"):
        get_first_batch(State(fresh_batches=lambda phase: iter(())))


def test_first_batch_may_be_none() -> None:
    """As a task has it whose forward() makes the samples."""
    assert get_first_batch(State(fresh_batches=lambda phase: iter([None]))) is None


def test_an_expanded_buffer_with_two_names_stays_one() -> None:
    shared = torch.zeros(1).expand(3)
    module = nn.Module()
    module.register_buffer("first", shared)
    module.register_buffer("second", shared)
    with borrowing(State(module=module)):
        pass
    assert module.first is module.second
    assert module.get_buffer("first").tolist() == [0, 0, 0]
    assert module.get_buffer("first").is_contiguous()
