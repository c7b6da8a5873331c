"""Planted state that a checkpoint does not hold: `verify` names it."""

import sys
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from hooks import Hook, State
from orchestrator import Task
from orchestrator.errors import UsageError
from orchestrator.experiment.load import make_experiment
from orchestrator.replay.verify import verify
from orchestrator.testing.small_task import SmallTask
from tests.tasks import described

RNG = np.random.default_rng(0)


class Points(Dataset[Any]):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.points = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
        self.rng = np.random.RandomState(0)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.points)

    def _noise(self) -> float:
        if self.kind == "own generator":
            return float(self.rng.rand())
        if self.kind == "epoch":
            return float(self.epoch)
        if self.kind == "time":
            return time.time() % 1
        if self.kind == "numpy in a worker":
            return float(np.random.rand())
        return float(RNG.random()) if self.kind == "global generator" else 0.0

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.epoch += self.kind == "epoch"
        return self.points[index] + self._noise(), torch.tensor(index % 3)


class Growing(nn.Module):
    """Sums inputs in an attribute that is no buffer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.total = torch.zeros(1)
        self.kind = kind

    def forward(self, points: Tensor) -> Tensor:
        if self.kind == "growing buffer" and self.training:
            self.total = torch.cat([self.total, points.detach().mean().reshape(1)])
        return self.layer(points) + self.total.sum()


class Outer(torch.optim.SGD):
    """Holds another optimizer in an object of its own, which its state dict leaves out."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr, momentum=0.9)
        self.base = types.SimpleNamespace(sgd=torch.optim.SGD(self.param_groups, lr))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.sgd.step()


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.randn(5), torch.tensor(1)


@dataclass
class Planted(SmallTask):
    kind: str = ""

    def model(self) -> nn.Module:
        self.scale = nn.Parameter(torch.ones(3))
        return Growing(self.kind)

    def data(self) -> Mapping[str, Dataset[Any]]:
        if self.kind == "failure":
            raise ValueError("no such kind")
        return {"train": Endless() if self.kind == "stream" else Points(self.kind)}

    def loader(self, dataset: Any, batches: Any, phase: str, options: Any) -> Any:
        if self.kind != "numpy in a worker":
            return super().loader(dataset, batches, phase, options)
        plain = Plain(batches)
        return DataLoader(dataset, batch_sampler=plain, collate_fn=self.collate, **options)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return super().loss(output * self.scale if self.kind == "parameter" else output, batch)

    def optimizer(self, model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
        if self.kind == "inner optimizer":
            return Outer(model.parameters(), lr)
        return torch.optim.SGD([*model.parameters(), self.scale], lr, momentum=0.9)


class Plain:
    """Batches without the seeds that the loop gives to each."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return (list(map(int, batch)) for batch in self.batches)


@dataclass
class Counts(Hook):
    hides: bool = True

    def __post_init__(self) -> None:
        self._count = 0

    def on_loss(self, state: State) -> None:
        self._count += self.hides
        assert state.loss is not None
        state.loss = state.loss * (1 + self._count)


class Batch:
    """A batch that torch does not know, and whose repr is its address."""

    def __init__(self, points: Tensor, labels: Tensor) -> None:
        self.parts = {"points": points.to_sparse(), "labels": labels}

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        return self


@dataclass
class Objects(Planted):
    """Batches as objects, on whose points the loss does not depend."""

    def collate(self, samples: Any) -> Any:
        return Batch(*default_collate(samples))

    def batch_size(self, batch: Any) -> int:
        return len(batch.parts["labels"])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch.parts["points"].to_dense() * 0)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return super().loss(output, [None, batch.parts["labels"]])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {}


@dataclass
class Custom(Task):
    def train(self, session: Any) -> Any:
        yield {}


def _verify(kind: str, **fields: Any) -> list[Any]:
    hook = {"type": f"{__name__}:Counts", "hides": kind == "hook"}
    written = {
        "task": f"{__name__}:Planted",
        "task_args": {"kind": kind},
        "optimizer": {"type": "task", "lr": 0.1},
    }
    return list(verify(described(**written, epochs=3, hooks={"counts": hook}, **fields)))


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("epoch", "the train data: Points.epoch", {}),
        ("own generator", "the train data: Points.rng", {}),
        ("global generator", f"{__name__}:RNG", {}),
        ("inner optimizer", "optimizer.base.sgd.state", {}),
        ("parameter", "task.scale", {}),
        ("hook", "hooks.counts._count", {}),
        ("growing buffer", "model.total", {}),
        (
            "time",
            "a second run from the beginning differs too (the samples of iteration 1 differ)",
            {},
        ),
        (
            "numpy in a worker",
            "samples depend on state in the DataLoader workers",
            {"loader": {"num_workers": 1}},
        ),
    ],
)
def test_cause_is_named(kind: str, name: str, fields: dict[str, Any]) -> None:
    continuations = _verify(kind, **fields)
    inside, at_end = continuations
    assert inside.iteration == 6
    assert at_end.iteration == 8
    assert inside.difference
    assert inside.causes[0].startswith(name)
    if kind not in ("numpy in a worker", "inner optimizer"):
        assert len(inside.causes) == 1


def test_training_that_continues_bit_for_bit_passes() -> None:
    continuations = _verify("none", loader={"num_workers": 1})
    assert [
        (entry.iteration, entry.loader_workers, entry.difference) for entry in continuations
    ] == [
        (6, 1, ""),
        (8, 2, ""),
    ]


@pytest.mark.parametrize("kind", ["none", "own generator"])
def test_batches_may_be_objects_and_sparse(kind: str) -> None:
    """Their numbers are compared, and not their addresses."""
    task = {"task": f"{__name__}:Objects", "task_args": {"kind": kind}}
    inside, _ = verify(described(**task, epochs=3, optimizer={"type": "task", "lr": 0.1}))
    assert inside.difference == ("" if kind == "none" else "the samples of iteration 7 differ")


def test_iterable_dataset_continues_with_as_many_loader_workers_as_before() -> None:
    written = {
        "task": f"{__name__}:Planted",
        "task_args": {"kind": "stream"},
        "optimizer": {"type": "SGD", "lr": 0.1},
    }
    loader = {"num_workers": 1}
    continuations = list(verify(described(**written, epochs=3, loader=loader, epoch_steps=4)))
    assert [
        (entry.iteration, entry.loader_workers, entry.difference) for entry in continuations
    ] == [
        (6, 1, ""),
        (8, 1, ""),
    ]


def test_ranks_are_compared() -> None:
    task = {
        "task": "tests.tasks:Points",
        "task_args": {"batch_norm": True, "dropout": 0.3, "noisy": True},
    }
    continuations = list(verify(described(**task, workers={"count": 2}, validate_every="3 steps")))
    assert [entry.difference for entry in continuations] == ["", ""]


def test_failed_training_cannot_be_verified() -> None:
    with pytest.raises(UsageError, match=r"cannot verify, because training fails: .*no such kind"):
        _verify("failure")


def test_ray_data_is_refused_before_it_looks_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for a task's module with `import ray.data`, whose data() would wait for a cluster.
    ray = types.ModuleType("ray")
    monkeypatch.setitem(sys.modules, "ray.data", types.ModuleType("ray.data"))
    monkeypatch.setattr(sys.modules[__name__], "ray", ray, raising=False)
    with pytest.raises(UsageError, match="uses Ray Data"):
        _verify("none")


def test_custom_loop_is_refused() -> None:
    experiment = make_experiment({"name": "custom", "task": f"{__name__}:Custom", "epochs": 1})
    with pytest.raises(UsageError, match="own training loop"):
        list(verify(experiment))


@pytest.mark.parametrize(
    ("length", "iterations"),
    [
        ({"epochs": None, "steps": 10}, [6, 8]),
        ({"epochs": None, "steps": 3}, [2, 3]),
        ({"epochs": 2}, [2, 4]),
    ],
)
def test_short_run_keeps_its_length(length: dict[str, Any], iterations: list[int]) -> None:
    """A OneCycleLR raises an error at the first step after its cycle."""
    steps = length.get("steps") or length["epochs"]
    every = "1 step" if "steps" in length else "1 epoch"
    experiment = described(
        **length,
        optimizer={"type": "SGD"},
        scheduler={"type": "OneCycleLR", "max_lr": 0.1, "total_steps": steps},
        hooks={"param_scheduler": {"every": every}},
    )
    continuations = list(verify(experiment))
    assert [entry.iteration for entry in continuations] == iterations
    assert [entry.difference for entry in continuations] == ["", ""]


def test_training_that_ends_before_a_checkpoint_is_refused() -> None:
    """It would be compared with nothing."""
    stopping = {"monitor": "val/loss", "mode": "min", "stopping_threshold": 1e9}
    with pytest.raises(
        UsageError,
        match=r"training ended after iteration 4 \(val/loss .*\), before a checkpoint could be compared",
    ):
        list(verify(described(epochs=3, hooks={"early_stopping": stopping})))


@dataclass
class Miscounts(Hook):
    """Reports an integer that begins again after a restore."""

    def __post_init__(self) -> None:
        self._count = 0

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._count += 1
        metrics["count"] = self._count


def test_integer_of_a_hook_is_compared() -> None:
    """Two of three reports follow the checkpoint inside the second epoch: the second is the first
    that the hook counts after the restore."""
    hooks = {"miscounts": {"type": f"{__name__}:Miscounts"}}
    inside, _ = verify(described(epochs=3, hooks=hooks))
    assert inside.difference == "count after iteration 8 is 1, not 2"
    assert inside.causes[0].startswith("hooks.miscounts._count is not restored: name it in")
