"""A loss of parts: their sum is trained, and each is a column and a mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hooks import Interval
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.tasks import Points, Rows, experiment, numbers

SAMPLES = 44


@dataclass
class Parts(Points):
    """Points with a loss of two parts."""

    train: int = SAMPLES
    val: int = 11
    as_parts: bool = True

    def loss(self, output: Tensor, batch: Any) -> Any:
        parts = {
            "entropy": functional.cross_entropy(output, batch[1]),
            "size": 0.1 * output.square().mean(),
        }
        return parts if self.as_parts else parts["entropy"] + parts["size"]


def live(
    folder: Path,
    world: World | None = None,
    restore: str | None = None,
    stop: int | None = None,
    **task: Any,
) -> tuple[Loop, Rows, list[dict[str, Any]]]:
    world, rows = world or World(), Rows()
    store = CheckpointStore(Storage(folder), is_master=world.is_master)
    loop = Loop(
        Parts(**task),
        experiment(batch_size=6, validate_every=Interval(4, "steps")),
        {"checkpoint": Checkpoint(every=Interval(3, "steps"), keep=None)},
        RunContext(store=store, recorder=rows, world=world),
    )
    if restore:
        loop.restore(restore)
    return loop, rows, [report.metrics for report in loop.run()]


def test_sum_is_trained_and_rows_and_reports_have_the_terms(tmp_path: Path) -> None:
    loop, rows, reports = live(tmp_path / "parts")
    whole, plain, told = live(tmp_path / "whole", as_parts=False)
    assert numbers(loop.state.module) == numbers(whole.state.module)
    assert rows.columns("phase", "iteration", "loss") == plain.columns("phase", "iteration", "loss")
    assert all(
        entropy + size == pytest.approx(loss)
        for loss, entropy, size in rows.columns("loss", "entropy", "size")
    )
    for report, other in zip(reports, told, strict=True):
        assert {
            name: value
            for name, value in report.items()
            if not name.endswith(("/entropy", "/size"))
        } == other
        assert report["val/entropy"] + report["val/size"] == pytest.approx(report["val/loss"])


def test_metric_named_loss_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        Parts, "metrics", lambda self, output, batch: {"loss": torch.ones(len(batch[1]))}
    )
    with pytest.raises(TaskError, match=r"metrics\(\) and loss\(\) both return 'loss'"):
        live(tmp_path, as_parts=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"loss\(\) returns a dict; expected a scalar tensor"),
        ({"a": torch.ones(2)}, r"loss\(\) returns a tensor of shape \(2,\) for its term 'a'"),
        ({"a": 1.0}, r"loss\(\) returns 1.0 for its term 'a'"),
        ({"": torch.ones(())}, r"loss\(\) names a term '': expected text"),
        ({"loss": torch.ones(())}, r"loss\(\) names a term 'loss': every row has a column"),
        (
            {"accuracy": torch.ones((), requires_grad=True)},
            r"metrics\(\) and loss\(\) both return 'accuracy'",
        ),
    ],
)
def test_invalid_terms_are_refused(
    given: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def loss(self: Any, output: Any, batch: Any) -> Any:
        return given

    monkeypatch.setattr(Parts, "loss", loss)
    with pytest.raises(TaskError, match=message):
        live(tmp_path)
