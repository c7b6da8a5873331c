"""Averages of parameters and buffers of a small model, by hand."""

import pytest
import torch
from torch import nn

from hooks import State
from hooks.model.weight_averages import WeightAverages


def make_module(value: float) -> nn.BatchNorm1d:
    """A layer whose parameters and running mean have one value."""
    module = nn.BatchNorm1d(2)
    for tensor in (module.weight, module.bias, module.running_mean):
        assert tensor is not None
        nn.init.constant_(tensor, value)
    return module


def test_each_average_has_its_own_coefficient() -> None:
    module = make_module(1.0)
    averages = WeightAverages(module, None, further=["slow"], has_buffers=True)
    nn.init.constant_(module.weight, 5.0)
    averages.update(1, lambda updates, step: [0.5, 0.25], State(module=module))
    assert averages.get_further()["slow"]["weight"].tolist() == [2.0, 2.0]
    assert averages.get_further()["slow"]["bias"].tolist() == [1.0, 1.0]
    with averages.applied():
        assert module.weight.tolist() == [3.0, 3.0]
    assert module.weight.tolist() == [5.0, 5.0]


def test_averages_cannot_be_applied_twice() -> None:
    averages = WeightAverages(make_module(1.0), None)
    with averages.applied(), pytest.raises(RuntimeError, match="cannot be nested"):
        averages.applied().__enter__()
    with averages.applied():
        pass


def test_restored_averages_are_those_that_were_stored() -> None:
    module = make_module(1.0)
    first = WeightAverages(module, None, further=["slow"], has_buffers=True)
    nn.init.constant_(module.weight, 5.0)
    assert module.running_mean is not None
    nn.init.constant_(module.running_mean, 3.0)
    first.update(4, lambda updates, step: [0.5, 0.25], State(module=module))
    with first.applied():
        stored = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert stored["running_mean"].tolist() == [2.0, 2.0]

    other = make_module(0.0)
    second = WeightAverages(other, None, further=["slow"], has_buffers=True)
    second.restore(stored, first.get_further(), first.list_updates())
    with second.applied():
        assert all(torch.equal(own, stored[name]) for name, own in other.state_dict().items())
    assert second.get_further()["slow"]["weight"].tolist() == [2.0, 2.0]
    once = {"count": 1, "first_step": 4, "last_step": 4}
    assert second.list_updates() == {"parameters": {None: once}, "buffers": once}


def test_updates_are_counted_by_optimizer_and_those_of_buffers_by_step() -> None:
    module = make_module(1.0)
    averages = WeightAverages(module, None, has_buffers=True)
    state = State(module=module, optimizer=torch.optim.SGD(module.parameters()))
    for step, turn in ((1, "d"), (1, "g"), (2, "d"), (3, "d"), (3, "g")):
        state.turn = turn
        averages.update(step, lambda updates, step: [1.0], state)
    assert averages.list_updates() == {
        "parameters": {
            "d": {"count": 3, "first_step": 1, "last_step": 3},
            "g": {"count": 2, "first_step": 1, "last_step": 3},
        },
        "buffers": {"count": 3, "first_step": 1, "last_step": 3},
    }
