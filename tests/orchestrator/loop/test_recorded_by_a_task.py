"""A task records numbers of its own: columns of the rows, by `self.progress.record`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

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
def test_values_recorded_by_a_task_are_columns_in_each_phase(tmp_path: Path, accumulate: int) -> None:
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
