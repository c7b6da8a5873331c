from __future__ import annotations

from weakref import ref

import torch

from hooks import State


def test_recorded_tensor_is_a_copy_without_graph() -> None:
    state, weights = State(), torch.ones(3, requires_grad=True)
    activations = weights * 2
    loss, kept = activations.sum(), ref(activations)
    state.record(loss=loss, first=activations.detach()[0], count=3)
    del activations, loss
    assert kept() is None
    view = torch.zeros(1000)
    state.record(one=view[1])
    view.fill_(5)
    assert {name: float(value) for name, value in state.row.items()} == {
        "loss": 6.0,
        "first": 2.0,
        "count": 3.0,
        "one": 0.0,
    }
    assert state.row["one"].untyped_storage().nbytes() == 4
