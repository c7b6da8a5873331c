"""Tasks and hooks for the tests of the config, a file that names them, and the problems of invalid
files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from hooks import Hook, Interval, Priority, Ranks, State
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.load import load_experiment, make_experiment
from orchestrator.task import Task

HERE = "tests.orchestrator.experiment.samples"

TEXT = f"""\
name: line
task: {HERE}:Line
task_args: {{width: 2}}
epochs: 3
optimizer: {{type: SGD, lr: 1e-1, momentum: 0.5}}
hooks:
  shadow:
    type: {HERE}:Shadow
    decay: 0.25
  console: null
"""
"""A valid experiment file."""


@dataclass
class Line(Task):
    """Fits a line."""

    width: Annotated[int, Gt(0)] = 1
    """Number of lines."""
    scale: float = 1.0
    """Factor of the targets."""

    def model(self) -> nn.Module:
        return nn.Linear(1, self.width)

    def data(self) -> Mapping[str, Dataset[Any]]:
        x = torch.linspace(-1, 1, 8).unsqueeze(1)
        return {"train": TensorDataset(x, self.scale * x)}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(output, batch[1].expand_as(output))


@dataclass
class Choosy(Line):
    """Requires a shadow."""

    def required_hooks(self) -> Mapping[str, Any]:
        return {"shadow": {"type": f"{HERE}:Shadow", "decay": 0.25, "keep": 7}}


@dataclass
class Own(Line):
    """Has its own optimizer and scheduler."""

    def optimizer(
        self, model: nn.Module, lr: Annotated[float, Gt(0)] = 0.125, bias_lr: float = 0.5
    ) -> torch.optim.Optimizer:
        weight, bias = model.parameters()
        return torch.optim.SGD(
            [{"params": [weight], "lr": lr}, {"params": [bias], "lr": bias_lr, "momentum": 0.5}]
        )

    def scheduler(self, optimizer: torch.optim.Optimizer, gamma: float = 0.5) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=gamma)


@dataclass
class Closed(Line):
    """Has an optimizer without arguments."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.scale)


class Forgot(Line):
    """Declares a field, but is not decorated."""

    depth: int = 2


@dataclass
class Unfinished(Task):
    """Lacks its model."""


@dataclass
class Shadow(Hook):
    """Follows the weights.

    At a distance.
    """

    decay: Annotated[float, Ge(0), Le(1)] = 0.5
    """Fraction that is kept."""
    every: Interval = Interval(1)
    """Interval,
    as text."""
    keep: int = 3
    mode: Literal["near", "far"] = "near"
    tags: list[str] = field(default_factory=list)
    updates: int = field(default=0, init=False)

    priority: ClassVar[Priority] = Priority.LOW

    def on_update(self, state: State) -> None: ...


@dataclass
class Band(Hook):
    """Needs both ends, in order."""

    low: float
    high: float

    ranks: ClassVar[Ranks] = Ranks.MASTER
    mutable: ClassVar[frozenset[str]] = frozenset({"low", "high"})

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    def on_step(self, state: State) -> None: ...


class Bare(Hook):
    """A hook that is not a dataclass."""


class Wide(torch.optim.SGD):
    """A custom optimizer."""

    def __init__(self, params: Any, lr: float, reach: int = 2, **rest: Any) -> None:
        super().__init__(params, lr=lr)
        self.reach = reach


def problems(file: Path, text: str, *overrides: str) -> list[Problem]:
    """Return the problems of a file with this text."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(file, overrides)
    return list(caught.value.problems)


def places(file: Path, text: str, *overrides: str) -> dict[str, int | None]:
    """Return the line of each problem of a file with this text, by path."""
    return {problem.path: problem.line for problem in problems(file, text, *overrides)}


@dataclass
class Typo(Line):
    """Returns data without a training phase."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"tran": super().data()["train"]}


def refusal(**more: Any) -> str:
    """Return the message that an experiment of the task Line is refused with."""
    with pytest.raises(ConfigError) as caught:
        make_experiment({"name": "line", "task": f"{HERE}:Line", "epochs": 3, **more})
    return str(caught.value)
