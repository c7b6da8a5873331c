"""The prototypes in a model."""

import pytest
from torch import nn

from hooks.self_supervised.shared.swapped_prediction import find_prototypes


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing", "is missing"), ("biased", "is a Linear with bias"), ("other", "is a ReLU")],
)
def test_prototypes_must_be_a_linear_layer_without_bias(name: str, what: str) -> None:
    module = nn.ModuleDict({"biased": nn.Linear(2, 2), "other": nn.ReLU()})
    with pytest.raises(ValueError, match=f"'{name}' of ModuleDict {what}"):
        find_prototypes(module, name)


def test_prototypes_may_have_two_names() -> None:
    layer = nn.Linear(2, 2, bias=False)
    module = nn.ModuleDict({"head": layer, "prototypes": layer})
    assert find_prototypes(module, "prototypes") is layer
