"""Costs of nested modules against sums by hand."""

import torch
from torch import nn

from hooks.model.forward_cost import measure_cost


def test_a_container_has_the_cost_of_all_modules_in_it() -> None:
    """Three samples: 4 x 5 and 5 x 2 products, two FLOPs each."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 5)), nn.Linear(5, 2))
    costs = measure_cost(model, lambda: model(torch.zeros(3, 4)))
    first = 2 * 3 * 4 * 5
    second = 2 * 3 * 5 * 2
    assert {name: cost.flops for name, cost in costs.items()} == {
        "": first + second,
        "0": first,
        "0.0": first,
        "1": second,
    }
    assert {name: cost.activations for name, cost in costs.items()} == {
        "": 3 * (5 + 2),
        "0": 3 * 5,
        "0.0": 3 * 5,
        "1": 3 * 2,
    }
    assert costs["1"].divide(3) == {
        "flops_per_sample": 20,
        "macs_per_sample": 10,
        "activations_per_sample": 2,
    }


def test_the_model_has_the_cost_of_a_function_that_calls_only_its_parts() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 5), "unused": nn.Linear(4, 5)})
    costs = measure_cost(model, lambda: model["used"](torch.zeros(1, 4)))
    assert costs[""].flops == costs["used"].flops == 2 * 4 * 5
    assert costs["unused"].flops == 0
