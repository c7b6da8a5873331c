"""Validation that draws random numbers gives the same numbers when it is repeated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from orchestrator import run
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.runs.result import Run
from tests.tasks import Points, PointSet, described


@dataclass
class Drawing(Points):
    """Draws from torch, NumPy and `random` wherever it evaluates."""

    sets: int = 1

    def data(self) -> Mapping[str, Any]:
        data = super().data()
        return {**data, **{f"val/{number}": PointSet(11, False, 5) for number in range(1, self.sets)}}

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        output: Tensor = super().forward(model, batch)
        return output + torch.rand_like(output) + np.random.rand() * random.random() if not model.training else output


def drawing(hooks: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    task_args = {"dropout": 0.3, "noisy": True, "batch_norm": True, "test": 9, **fields.pop("task_args", {})}
    return described(**{"task": f"{__name__}:Drawing", "task_args": task_args, "hooks": {**(hooks or {})}, **fields})


EVERY = {
    "its best": {"checkpoint": {"every": 0, "best": "val/loss", "save_last": False}},
    "steps": {"checkpoint": {"keep": None, "every": "2 steps"}},
}
WEIGHTS = {
    "ema": {"ema": {"decay": 0.5, "evaluate": "ema", "buffers": "ema"}},
    "both": {"ema": {"decay": 0.5, "evaluate": "both"}},
}


def measured(reports: Sequence[Mapping[str, Any]], step: int, phase: str) -> dict[str, Any]:
    """The metrics of a phase at a step, without times and memory."""
    metrics = {name: value for report in reports if report["step"] == step for name, value in report.items()}
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith(f"{phase}/") and not name.endswith(("_s", "_bytes"))
    }


def assert_measured_again(done: Run) -> None:
    """Every checkpoint of a step that the run has reported gives what it reported."""
    checked = 0
    for name in (path.name for path in Path(done.path, "checkpoints").iterdir() if path.is_dir()):
        for phase in ("val", "test"):
            step = CheckpointStore(done.folder.find_checkpoint_folder()).read_position(name).step
            if expected := measured(done.reports(), step, phase):
                assert measured(done.evaluate(name, phase).reports(), step, phase) == expected, (name, phase)
                checked += 1
    assert checked


@pytest.mark.parametrize(("every", "weights"), [("its best", "both"), ("steps", "ema")])
def test_evaluating_a_checkpoint_again_gives_the_metrics_of_the_run(every: str, weights: str, tmp_path: Path) -> None:
    experiment = drawing({**EVERY[every], **WEIGHTS[weights]}, validate_every="4 steps", task_args={"sets": 2})
    assert_measured_again(run(experiment, tmp_path, "run", local=True))
