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
    averages.update_parameters([0.5, 0.25], State(module=module))
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
    first.update_parameters([0.5, 0.25], State(module=module))
    assert first.buffers is not None
    first.buffers.update(0.5)
    with first.applied():
        stored = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert stored["running_mean"].tolist() == [2.0, 2.0]

    other = make_module(0.0)
    second = WeightAverages(other, None, further=["slow"], has_buffers=True)
    second.restore(stored, first.get_further())
    with second.applied():
        assert all(torch.equal(own, stored[name]) for name, own in other.state_dict().items())
    assert second.get_further()["slow"]["weight"].tolist() == [2.0, 2.0]
