import warnings
from copy import deepcopy

import torch
from torch import nn

from hooks.model.activation_checkpointing import keep_activations, keep_no_activations


def test_copy_has_its_own_weights_and_can_keep_activations() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    keep_no_activations(model[0])
    copied = deepcopy(model)
    with torch.no_grad():
        model[0].weight.fill_(1)  # positive outputs, which the ReLU leaves as they are
        copied[0].weight.zero_()
    points = torch.ones(3, 2)
    assert torch.equal(copied(points), copied[0].bias.relu().expand(3, 2))
    assert not torch.equal(model(points), copied(points))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    assert repr(model) == repr(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert type(keep_activations(copied)[0]) is nn.Linear
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        assert torch.equal(torch.jit.script(copied)(points), copied(points))


def test_retained_graph_recomputes_activations_in_each_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))
    keep_no_activations(model)
    loss = model(torch.randn(8, 2)).square().sum()
    first, second = (
        torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0] for _ in range(2)
    )
    assert torch.equal(first, second)
    assert model[1].num_batches_tracked == 1
