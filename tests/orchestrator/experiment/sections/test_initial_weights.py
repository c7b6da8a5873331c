"""Initial weights: the names of tensors in a file, and in the model."""

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.initial_weights import Init


@pytest.mark.parametrize("old", ["layer?.weight", "layer[01].weight"])
def test_rename_takes_no_other_wildcard_than_a_star(old: str) -> None:
    with pytest.raises(ConfigError, match=r"rename: takes \* as its only wildcard, got 'layer"):
        Init(**{"from": "weights.pt", "rename": {old: "block.weight"}})
