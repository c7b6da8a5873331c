"""A notebook's own task on Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator import Experiment, run

pytestmark = pytest.mark.ray

CELL = """
from dataclasses import dataclass
from typing import Any
from hooks import Hook, State
from tests.tasks import Points

@dataclass
class Cell(Points):
    width: int = 3

@dataclass
class Marks(Hook):
    by: float = 1.0

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics["val/marked"] = self.by * state.step
"""


def test_ranks_train_classes_of_a_notebook(ray_cluster: Any, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(CELL, vars(cell))
    experiment = Experiment(
        task=cell.Cell(), epochs=1, batch_size=8, hooks={"marks": cell.Marks(by=2.0)}, workers={"count": 2, "cpus": 0.5}
    )
    done = run(experiment, "runs", "of-a-notebook", engine="gang")
    alone = run(experiment, "runs", "alone", local=True)
    assert (done.status, done.metrics["val/marked"].tolist()) == ("finished", [2.0 * done.metrics["step"].iloc[0]])
    assert done.config["task"] == alone.config["task"] == "__main__:Cell"
