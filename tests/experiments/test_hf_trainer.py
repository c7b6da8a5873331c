from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.hf_trainer import TrainedByTrainer
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.contents import load_weights
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Rows, experiment


@dataclass
class Small(TrainedByTrainer):
    def blocks(self, phase: str) -> list[dict[str, Tensor]]:
        bytes_ = torch.randint(
            256,
            (12 if phase == "train" else 4, 8),
            generator=torch.Generator().manual_seed(len(phase)),
        )
        return [{"input_ids": block, "labels": block} for block in bytes_]


def test_trainer_logs_become_rows_and_reports_and_resume_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def trained(restored: str | None = None) -> tuple[list[Any], list[Any], Any]:
        store, rows = CheckpointStore(Storage(tmp_path)), Rows()
        task = Small(width=8, depth=1, heads=1, context=8)
        loop = CustomLoop(
            task,
            experiment(epochs=3, batch_size=4),
            {"checkpoint": Checkpoint(keep=None)},
            RunContext(store=store, recorder=rows),
        )
        if restored:
            loop.restore(restored)
        reports = [report.metrics for report in loop.run()]
        return (
            reports,
            rows.columns("iteration", "loss", "lr", "grad_norm"),
            load_weights(store, "last"),
        )

    reports, rows, weights = trained()
    assert [report["step"] for report in reports] == [3, 6, 9]
    assert reports[0]["train/loss"] == pytest.approx(sum(loss for _, loss, _, _ in rows[:3]) / 3)
    again, rest, same = trained("epoch-0002")
    assert (again, rest) == (reports[1:], rows[6:])
    assert all(torch.equal(same[name], weights[name]) for name in weights)
