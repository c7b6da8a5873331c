"""Warnings of state that no checkpoint holds."""

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from hooks import Hook, State
from orchestrator import Task
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.testing.small_loop import Screen
from orchestrator.testing.small_task import SmallTask
from tests.tasks import experiment


def _warnings(task: Task, hooks: Mapping[str, Hook] | None = None, **fields: Any) -> list[str]:
    """Return the words before the first verb of each warning."""
    screen = Screen()
    loop = Loop(
        task, experiment(batch_size=4, epochs=1, **fields), hooks or {}, RunContext(display=screen)
    )
    for _ in loop.run():
        pass
    return screen.lines


@dataclass
class Weighted(SmallTask):
    """Uncertainty weighting with a parameter that is not part of the model."""

    def model(self) -> nn.Module:
        self.weight = nn.Parameter(torch.zeros(1))
        self.teacher = nn.Linear(5, 3)
        return super().model()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        with torch.no_grad():
            self.teacher(batch[0])
        return (super().loss(output, batch) * self.weight.exp()).sum()


@dataclass
class WeightedByOptimizer(Weighted):
    def optimizer(self, model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), self.weight], lr=lr)


@dataclass
class WeightedAndSaved(WeightedByOptimizer):
    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight.data.copy_(state["weight"])


def _own_optimizer() -> dict[str, Any]:
    return {"optimizer": {"type": "task", "lr": 0.1}}


def test_parameter_outside_the_model_that_nothing_trains_is_named() -> None:
    (line,) = _warnings(Weighted())
    assert line.startswith("task.weight gets gradients, but no optimizer trains it")
    assert "model()" in line


def test_parameter_outside_the_model_that_is_trained_is_named() -> None:
    (line,) = _warnings(WeightedByOptimizer(), **_own_optimizer())
    assert line.startswith("the optimizer trains task.weight, which is not part of the model")
    assert _warnings(WeightedAndSaved(), **_own_optimizer()) == []


@dataclass
class BiasOnly(SmallTask):
    """Gives the optimizer the biases alone, and perhaps freezes the weights."""

    freezes: bool = False

    def model(self) -> nn.Module:
        model = super().model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias") or not self.freezes)
        return model

    def optimizer(self, model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
        named = model.named_parameters()
        return torch.optim.SGD([value for name, value in named if name.endswith("bias")], lr=lr)


@dataclass
class NewScale(Hook):
    """Scales the weights by a parameter that is made after the optimizer."""

    def on_start(self, state: State) -> None:
        layer: Any = next(part for part in state.module.modules() if isinstance(part, nn.Linear))
        layer.scale = nn.Parameter(torch.ones(1))
        layer.forward = lambda points: nn.functional.linear(
            points, layer.weight * layer.scale, layer.bias
        )


def test_parameters_of_the_model_that_no_optimizer_trains_are_named() -> None:
    (line,) = _warnings(BiasOnly(), **_own_optimizer())
    assert line.startswith("parameters of the model get gradients, but no optimizer trains them: ")
    assert ".weight" in line
    assert ".bias" not in line
    assert _warnings(BiasOnly(freezes=True), **_own_optimizer()) == []
    (line,) = _warnings(SmallTask(), {"new": NewScale()})
    assert "trains them: 0.scale. Create them in model()" in line


class Drawing(Dataset[Any]):
    """Draws from a generator of its own, in each sample or only when it is made."""

    def __init__(self, generator: Any, draws: bool) -> None:
        self.points = torch.randn(8, 5)
        self.generator = generator
        self.draws = draws

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if self.draws:
            torch.rand(1, generator=self.generator) if isinstance(
                self.generator, torch.Generator
            ) else self.generator.random()
        return self.points[index], torch.tensor(index % 3)


@dataclass
class DrawingTask(SmallTask):
    kind: str = "RandomState"
    draws: bool = True

    def data(self) -> Mapping[str, Dataset[Any]]:
        generators = {
            "RandomState": np.random.RandomState(0),
            "Generator": np.random.default_rng(0),
            "Random": random.Random(0),
            "torch": torch.Generator(),
        }
        return {"train": Subset(Drawing(generators[self.kind], self.draws), range(8))}


@pytest.mark.parametrize("kind", ["RandomState", "Generator", "Random", "torch"])
def test_generator_of_a_dataset_is_named(kind: str) -> None:
    (line,) = _warnings(DrawingTask(kind=kind))
    assert line.startswith(
        "the train data: Subset.dataset.generator is a random generator that training uses, and no"
    )
    assert _warnings(DrawingTask(kind=kind, draws=False)) == []


class Slotted:
    """Adds noise, from an attribute that is not in its `__dict__`."""

    __slots__ = ("generator",)

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, samples: Any) -> Any:
        return self.draw(samples)

    def draw(self, samples: Any) -> Any:
        self.generator.random()
        return default_collate(samples)


def draw_from(generator: random.Random, samples: Any) -> Any:
    generator.random()
    return default_collate(samples)


@dataclass
class CollatingTask(SmallTask):
    """Its loader has a `collate_fn` with a generator of its own."""

    kind: str = "object"

    def loader(self, dataset: Any, batches: Any, phase: str, options: Any) -> Any:
        generator = random.Random(0)
        functions = {
            "object": Slotted(generator),
            "method": Slotted(generator).draw,
            "partial": partial(draw_from, generator),
            "function": lambda samples: draw_from(generator, samples),
        }
        collate = functions[self.kind]
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("object", "Slotted.generator"),
        ("method", "method.self.generator"),
        ("partial", "partial.args[0]"),
        ("function", "function.generator"),
    ],
)
def test_generator_of_a_collate_function_is_named(kind: str, path: str) -> None:
    (line,) = _warnings(CollatingTask(kind=kind))
    assert line.startswith(f"the train data: {path} is a random generator that training uses")


@dataclass
class Counting(Hook):
    """Scales the gradient by a count, and keeps caches and times, on which nothing depends."""

    def __post_init__(self) -> None:
        self._count = 0
        self._cache: Tensor | None = None
        self._started = 0.0

    def on_gradients(self, state: State) -> None:
        self._count += 1
        self._cache = torch.ones(1)
        self._started = time.perf_counter()


@dataclass
class CountingAndSaved(Counting):
    state_fields: ClassVar[tuple[str, ...]] = ("_count",)


@dataclass
class CountingTwice(CountingAndSaved):
    """Saves one of two attributes, whose name begins that of the other."""

    def on_gradients(self, state: State) -> None:
        super().on_gradients(state)
        self._counts = [self._count]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = [0]


@dataclass
class Ramp:
    """A callable with an attribute."""

    calls: int = 0

    def __call__(self) -> float:
        self.calls += 1
        return 1 / self.calls


@dataclass
class Ramped(SmallTask):
    ramp: Any = field(default_factory=Ramp)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return super().loss(output, batch) * self.ramp()


@dataclass
class Zeroed(SmallTask):
    """Has the same number as a hook at its start, which is the same object in Python."""

    offset: int = 0


def test_attributes_of_hooks_and_callables_are_named() -> None:
    (line,) = _warnings(SmallTask(), {"count": Counting()})
    assert line.startswith(
        "hooks.count._count has changed since the start, and no checkpoint holds it"
    )
    assert "state_fields" in line
    assert _warnings(SmallTask(), {"count": CountingAndSaved()}) == []
    (line,) = _warnings(SmallTask(), {"count": CountingTwice()})
    assert line.startswith("hooks.count._counts[0] has changed")
    (line,) = _warnings(Zeroed(), {"count": Counting()})
    assert line.startswith("hooks.count._count has changed")
    (line,) = _warnings(Ramped())
    assert line.startswith("task.ramp.calls has changed since the start")
    assert "state_dict()" in line


class Annealed(nn.Linear):
    """Cools with each batch, by a number or by one that is saved; caches its last output."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.temperature = 1.0
        self.last = torch.zeros(1)

    def forward(self, points: Tensor) -> Tensor:
        self.temperature *= 0.9
        self.last = super().forward(points) / self.temperature
        return self.last


class AnnealedAndSaved(Annealed):
    def get_extra_state(self) -> dict[str, float]:
        return {"temperature": self.temperature}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.temperature = state["temperature"]


@dataclass
class AnnealedTask(SmallTask):
    saved: bool = False

    def model(self) -> nn.Module:
        return nn.Sequential(AnnealedAndSaved() if self.saved else Annealed())


def test_number_of_a_module_is_named_unless_its_extra_state_is_saved() -> None:
    (line,) = _warnings(AnnealedTask())
    assert line.startswith("model.0.temperature has changed since the start")
    assert "buffer" in line
    assert "get_extra_state()" in line
    assert _warnings(AnnealedTask(saved=True)) == []


@dataclass
class Summed(SmallTask):
    """Adds up its losses, beginning with an integer."""

    def model(self) -> nn.Module:
        self.total: float = 0
        return super().model()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        loss = super().loss(output, batch)
        self.total += loss.item()
        return loss


def test_number_that_becomes_a_float_is_named() -> None:
    (line,) = _warnings(Summed())
    assert line.startswith("task.total has changed since the start, and no checkpoint holds it")


@dataclass
class Prompted(SmallTask):
    """Keeps values that never change: one unequal to itself, and one without a version."""

    best: float = math.nan

    def model(self) -> nn.Module:
        with torch.inference_mode():
            self.prompts = torch.randn(3)
        return super().model()


def test_constant_attributes_are_not_named() -> None:
    assert _warnings(Prompted()) == []
