from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.lightning_trainer import TrainedByLightning
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.contents import load_weights
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Rows, experiment


def test_lightning_logs_become_rows_and_reports_and_resume_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")

    def trained(restored: str | None = None) -> tuple[list[Any], list[Any], Any]:
        store, rows = CheckpointStore(Storage(tmp_path)), Rows()
        loop = CustomLoop(
            TrainedByLightning(width=4),
            experiment(epochs=3, batch_size=200),
            {"checkpoint": Checkpoint(keep=None)},
            RunContext(store=store, recorder=rows),
        )
        if restored:
            loop.restore(restored)
        reports = [report.metrics for report in loop.run()]
        return reports, rows.columns("iteration", "loss", "lr"), load_weights(store, "last")

    reports, rows, weights = trained()
    assert [(report["step"], "val/accuracy" in report) for report in reports] == [
        (7, True),
        (14, True),
        (21, True),
    ]
    again, rest, same = trained("epoch-0002")
    assert (again, rest) == (reports[1:], rows[14:])
    assert all(torch.equal(same[name], weights[name]) for name in weights)
