"""A task records numbers of its own: columns of the rows, by `self.progress.record`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator import Experiment, run
from tests.tasks import Points


@dataclass
class Recording(Points):
    """Records the places of the samples of each batch, summed, in every method that sees a batch."""

    train: int = 20
    val: int = 10
    test: int = 6

    def forward(self, model: nn.Module, batch: Any) -> Any:
        self.progress.record(in_forward=batch[2].sum())
        return super().forward(model, batch)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        self.progress.record(in_loss=batch[2].sum(), with_graph=output.mean(), plain=float(len(output)))
        return super().loss(output, batch)

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        self.progress.record(in_metrics=int(batch[2].sum()))
        return super().metrics(output, batch)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_a_task_records_is_a_column_of_each_iteration_of_each_phase(tmp_path: Path, accumulate: int) -> None:
    settings = {"batch_size": 8, "accumulate": accumulate, "optimizer": {"type": "SGD", "lr": 0.1}}
    rows = run(Experiment(task=Recording, epochs=2, **settings), tmp_path, local=True).stats
    for phase, samples in {"train": 20, "val": 10, "test": 6}.items():
        here = rows[rows["phase"] == phase]
        epochs = 1 if phase == "test" else 2
        assert (
            here["plain"].tolist() == here["batch_size"].tolist() == ([8.0] * (samples // 8) + [samples % 8]) * epochs
        )
        for name in ("in_forward", "in_loss", "in_metrics"):
            assert here[name].sum() == epochs * sum(range(samples))
    assert rows["with_graph"].notna().all()


@dataclass
class Turning(Points):
    """Two networks that take turns, and what is recorded before, between and behind these."""

    val: int = 0

    def model(self) -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)})

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Tensor]]:
        before = model["a"](batch[0])
        self.progress.record(before=before.mean())
        yield "a", functional.cross_entropy(before, batch[1])
        self.progress.record(between=model["a"](batch[0]).mean())
        yield "b", functional.cross_entropy(model["b"](batch[0]), batch[1])
        self.progress.record(behind=1.0)


def test_in_turns_a_column_keeps_its_name_and_sees_the_steps_so_far(tmp_path: Path) -> None:
    sgd = {"type": "SGD", "lr": 0.5}
    optimizers = {name: {**sgd, "params": f"{name}.*"} for name in "ab"}
    rows = run(Experiment(task=Turning, epochs=1, batch_size=13, optimizers=optimizers), tmp_path, local=True).stats
    assert not {"before_a", "between_a", "between_b", "behind_b"} & set(rows)
    assert (rows["behind"] == 1).all()
    torch.manual_seed(0)
    task = Turning()
    model: Any = task.model()
    data: Any = task.data()["train"]
    optimizer = torch.optim.SGD(model["a"].parameters(), lr=0.5)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    for row, first in zip(rows.itertuples(), range(0, len(data), 13), strict=True):
        points, labels, _ = task.collate([data[place] for place in order[first : first + 13]])
        output = model["a"](points)
        optimizer.zero_grad()
        functional.cross_entropy(output, labels).backward()
        optimizer.step()
        assert (row.before, row.between) == (output.mean().item(), model["a"](points).mean().item())
