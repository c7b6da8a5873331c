"""Optimizers over the parameters of a model."""

from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.building import build_optimizer
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.optimization import Optimization
from tests.orchestrator.experiment.samples import Own


class Forgetful(Own):
    given: Any = None

    def optimizer(self, model: nn.Module, lr: float = 0.1) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "must return an optimizer, got a NoneType"),
        ({"d": None}, "must return an optimizer, got a dict"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))]), "has none of the model's parameters"),
    ],
)
def test_optimizer_method_must_return_an_optimizer_of_the_model(given: Any, message: str) -> None:
    task = Forgetful()
    task.given = given
    with pytest.raises(ConfigError) as caught:
        build_optimizer(Optimization(None, Component(type="task")), task, task.model())
    assert message in str(caught.value)
