"""The optimizer: a class of torch, a custom class, or the method of the task."""

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import torch
from pydantic import AfterValidator
from torch import nn
from torch.optim import SGD

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment, to_dict, to_yaml
from orchestrator.experiment.optim.building import build_optimizer
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.optimizer import check_optimizer
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from tests.orchestrator.experiment.samples import HERE, Line, refusal


def experiment(**more: Any) -> Experiment:
    return make_experiment({"name": "line", "task": f"{HERE}:Line", "epochs": 1, **more})


def groups(described: Experiment) -> list[dict[str, Any]]:
    task = resolve(described.source).task
    return build_optimizer(list_optimizations(described)[None], task, task.model()).param_groups


def _refuse_three(rate: float) -> float:
    if rate == 3:
        raise RuntimeError("three is too much")
    return rate


class Picky(SGD):
    def __init__(self, params: Any, lr: Annotated[float, AfterValidator(_refuse_three)]) -> None:
        super().__init__(params, lr)


@pytest.mark.parametrize(
    ("optimizer", "path", "message"),
    [
        ({"type": "SGD", "momentun": 1}, "optimizer.momentun", "did you mean 'momentum'?"),
        ({"type": "SGD", "lr": -1}, "optimizer", "SGD raised: Invalid learning rate: -1"),
        ({"type": "SGD", "nesterov": True}, "optimizer", "Nesterov momentum requires a momentum"),
        ({"type": f"{HERE}:Line"}, "optimizer.type", "must be a subclass of Optimizer"),
        (
            {"type": f"{__name__}:Picky", "lr": 3},
            "optimizer.lr",
            "RuntimeError: three is too much",
        ),
    ],
)
def test_invalid_optimizer_is_refused_without_a_model(
    optimizer: Any, path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_optimizer(Optimization(None, Component.model_validate(optimizer)), Line)
    assert path in [problem.path for problem in caught.value.problems]
    assert message in str(caught.value)


# The task's own


OWN = {"task": f"{HERE}:Own"}


def test_optimizer_of_the_task_is_used_without_a_type() -> None:
    described = experiment(**OWN)
    assert to_dict(described)["optimizer"] == {"type": "task", "lr": 0.125, "bias_lr": 0.5}
    assert to_dict(described)["scheduler"] == {"type": "task", "gamma": 0.5}
    assert [group["lr"] for group in groups(described)] == [0.125, 0.5]
    assert make_experiment(to_dict(described)) == described
    assert "type: task" in to_yaml(described)


@pytest.mark.parametrize("more", [{}, {"type": "task"}])
def test_optimizer_of_the_task_gets_the_arguments_of_the_file(more: Mapping[str, Any]) -> None:
    described = experiment(**OWN, optimizer={"lr": 0.25, **more})
    assert [group["lr"] for group in groups(described)] == [0.25, 0.5]


def test_type_in_the_file_replaces_the_optimizer_of_the_task() -> None:
    described = experiment(**OWN, optimizer={"type": "SGD", "lr": 0.25}, scheduler=None)
    assert [(group["lr"], group["momentum"]) for group in groups(described)] == [(0.25, 0)]
    assert described.scheduler is None
    assert make_experiment(to_dict(described)) == described


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"task": f"{HERE}:Closed", "optimizer": {"lr": 100}},
            "optimizer.lr: has no effect: Closed.optimizer()",
        ),
        ({**OWN, "optimizer": {"bias_rl": 2}}, "(did you mean 'bias_lr'?)"),
        ({**OWN, "optimizer": {"lr": 0}}, "optimizer.lr: must be greater than 0, got 0"),
        ({"optimizer": {"type": "task"}}, "optimizer.type: 'task' needs a method Line.optimizer()"),
        ({"scheduler": {"type": "task"}}, "scheduler.type: 'task' needs a method Line.scheduler()"),
        (
            {**OWN, "changes": [{"at": 1, "set": {"optimizer.momentum": 0.5}}]},
            "changes.0.set.optimizer.momentum:",
        ),
        (
            {"task": f"{HERE}:Closed", "changes": [{"at": 1, "set": {"optimizer.lr": 0.5}}]},
            "changes.0.set.optimizer.lr: has no effect: Closed.optimizer()",
        ),
        (
            {
                "optimizer": {"type": "SGD", "momentum": 0.5},
                "changes": [{"at": 1, "set": {"optimizer.nesterov": True}}],
            },
            "changes.0.set.optimizer.nesterov: must be a number, got True",
        ),
    ],
)
def test_arguments_without_effect_are_refused(more: Mapping[str, Any], message: str) -> None:
    assert message in refusal(**more)


@pytest.mark.parametrize("search", [{"search": "grid"}, {"scheduler": "pbt", "trials": 4}])
def test_swept_argument_must_be_declared_by_the_task(search: Mapping[str, Any]) -> None:
    sweep = {
        "metric": "train/loss",
        "mode": "min",
        **search,
        "space": {"optimizer.lr": {"choice": [0.1, 0.2]}},
    }
    assert experiment(**OWN, sweep=sweep).optimizer.type == "task"
    assert "sweep.space.optimizer.lr: has no effect: Closed.optimizer()" in refusal(
        task=f"{HERE}:Closed", sweep=sweep
    )


class Clipped(torch.optim.SGD):
    def __init__(self, params: Any, lr: float = 0.1, clip: float | None = 1.0) -> None:
        super().__init__(params, lr)


class ClippedTask(Line):
    def optimizer(self, model: nn.Module, lr: float = 0.1, clip: float | None = 1.0) -> Clipped:
        return Clipped(model.parameters(), lr, clip)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({"optimizer": {"type": "SGD", "lr": 0.2, "momentum": None}}, {"lr": 0.2}),
        ({"optimizer": {"type": f"{__name__}:Clipped", "clip": None}}, {"clip": None}),
        (
            {"task": f"{__name__}:ClippedTask", "optimizer": {"clip": None}},
            {"lr": 0.1, "clip": None},
        ),
    ],
)
def test_null_removes_an_argument_of_torch_and_is_a_value_for_custom_code(
    settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert experiment(**settings).optimizer.arguments == arguments
