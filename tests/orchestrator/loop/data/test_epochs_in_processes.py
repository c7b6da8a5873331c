"""What depends on the epoch is the same in the processes of a loader as without them."""

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    get_worker_info,
)

from hooks import Hook, State
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.task import Task
from tests.tasks import experiment

KINDS = (
    "dataset",
    "subset",
    "concat",
    "stack",
    "transform",
    "collator",
    "task",
    "attribute",
    "iterable dataset",
    "iterable dataset in it",
)


class Rows(Dataset[Any]):
    """Sample i is 100 * epoch + i."""

    transform: Any = None
    epoch = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        value = torch.tensor(100.0 * self.epoch + index)
        return self.transform(value) if self.transform else value


class EpochRows(Rows):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Shift:
    """A transform, or a collator."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, values: Any) -> Any:
        if isinstance(values, list):
            return torch.stack(values) + 100 * self.epoch, torch.zeros(len(values))
        return values + 100 * self.epoch


class Flow(IterableDataset[Any]):
    """An iterable dataset of rows, which itself knows nothing of epochs."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return (self.dataset[index] for index in range(8))

    def __len__(self) -> int:
        return 8


class EpochFlow(Flow):
    def set_epoch(self, epoch: int) -> None:
        self.dataset.epoch = epoch  # type: ignore[attr-defined]


@dataclass
class Epochs(Task):
    kind: str = "dataset"
    evaluates: bool = False
    epoch: int = 0

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self) -> Any:
        rows: Any = (
            Rows()
            if self.kind in ("transform", "collator", "task", "attribute", "iterable dataset")
            else EpochRows()
        )
        if self.kind == "transform":
            rows.transform = Shift()
        made: Any = {
            "subset": lambda: Subset(Subset(rows, range(8)), range(8)),
            "concat": lambda: ConcatDataset([Subset(rows, range(4)), Subset(rows, range(4, 8))]),
            "stack": lambda: StackDataset(rows, rows),
            "iterable dataset": lambda: EpochFlow(rows),
            "iterable dataset in it": lambda: Flow(rows),
        }.get(self.kind, lambda: rows)()
        return {"train": made, "val": Subset(rows, range(8))} if self.evaluates else {"train": made}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def collate(self, samples: Any) -> Any:
        values = torch.stack(
            [sample[0] if isinstance(sample, tuple) else sample for sample in samples]
        )
        return values + 100 * self.epoch * (self.kind == "task"), torch.zeros(len(samples))

    def loader(self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]) -> Any:
        if self.kind != "collator":
            return super().loader(dataset, batches, phase, options)
        return DataLoader(dataset, batch_sampler=batches, collate_fn=Shift(), **options)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(torch.zeros(1, 1)) * 0 + batch[0].mean()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return output.mean()


@dataclass
class Changes(Hook):
    """Changes an attribute of the dataset at the beginning of each epoch."""

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            state.loaders["train"].dataset.epoch = state.epoch


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_epoch_sees_its_own_samples(kind: str, processes: int) -> None:
    hooks: dict[str, Hook] = {"sampler_seed": DistSamplerSeed()}
    if kind == "attribute":
        hooks["changes"] = Changes()
    settings = experiment(epochs=3, batch_size=4, loader={"num_workers": processes})
    reports = list(Loop(Epochs(kind), settings, hooks).run())
    assert [report.metrics["train/loss"] for report in reports] == [3.5, 103.5, 203.5]


@pytest.mark.parametrize("processes", [0, 1])
def test_validation_shares_the_epoch_of_the_training_dataset(processes: int) -> None:
    settings = experiment(epochs=3, batch_size=4, loader={"num_workers": processes})
    reports = list(
        Loop(Epochs("subset", evaluates=True), settings, {"sampler_seed": DistSamplerSeed()}).run()
    )
    assert [report.metrics["val/loss"] for report in reports] == [3.5, 103.5, 203.5]


@dataclass
class Identified(Epochs):
    """Each sample is the number of the process that has read it."""

    def data(self) -> Any:
        return {"train": [torch.tensor(float(number)) for number in range(8)]}

    set_epoch = None  # type: ignore[assignment]

    def collate(self, samples: Any) -> Any:
        assert get_worker_info() is not None
        return torch.full((len(samples),), float(os.getpid())), samples


def test_processes_live_on_if_nothing_depends_on_the_epoch() -> None:
    settings = experiment(epochs=3, batch_size=8, loader={"num_workers": 1})
    reports = list(Loop(Identified(), settings, {"sampler_seed": DistSamplerSeed()}).run())
    assert len({report.metrics["train/loss"] for report in reports}) == 1


class Progress(Epochs):
    def collate(self, samples: Any) -> Any:
        return torch.stack(samples) * self.progress.epoch, samples


def test_progress_is_refused_in_a_loader_process() -> None:
    settings = experiment(epochs=2, batch_size=4, loader={"num_workers": 1})
    with pytest.raises(
        TaskError, match=r"a DataLoader worker is ahead of the loop .* give the dataset set_epoch"
    ):
        list(Loop(Progress(), settings, {}).run())
    list(Loop(Progress(), experiment(epochs=2, batch_size=4), {}).run())
