"""A step that is a CUDA graph trains as it does without one, and the host waits for none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import Rhythm
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from hooks.training.param_scheduler import ParamScheduler
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.sections.experiment import Component
from orchestrator.storage import Storage
from tests.gpu.tasks import loop_on
from tests.gpu.test_waits import train_watched
from tests.tasks import Points

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("same_numbers_each_time")]

TASK = Points(train=100, batch_norm=True, dropout=0.25)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_captured_step_trains_as_it_does_without_a_graph(cuda: torch.device, kind: str, precision: str) -> None:
    def trained(captured: bool) -> Any:
        hooks = {"scheduler": ParamScheduler(every=Rhythm(1, "steps")), "ema": EMA(decay=0.5)}
        optimizer, scheduler = (
            Component(type=kind, lr=0.125, fused=True),
            Component(type="StepLR", step_size=3, gamma=0.5),
        )
        loop = loop_on(
            cuda, TASK, hooks, cuda_graph=captured, optimizer=optimizer, scheduler=scheduler, precision=precision
        )
        list(loop.run())
        return loop.state.module.state_dict()

    plain = trained(False)
    for name, value in trained(True).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)


def test_a_captured_run_goes_on_from_its_checkpoint_with_and_without_a_graph(
    cuda: torch.device, tmp_path: Path
) -> None:
    def trained(restore: str | None = None, captured: bool = True) -> Any:
        hooks = {"checkpoint": Checkpoint(every=Rhythm(7, "steps"), keep=None)}
        optimizer = Component(type="AdamW", lr=0.125, fused=True)
        loop = loop_on(
            cuda, TASK, hooks, store=CheckpointStore(Storage(tmp_path)), cuda_graph=captured, optimizer=optimizer
        )
        if restore:
            loop.restore(restore)
        list(loop.run())
        return loop.state.module.state_dict()

    whole = trained()
    for captured in (True, False):
        for name, value in trained("step-00000007", captured).items():
            torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-6)


def test_nothing_waits_for_a_graph_but_its_capture(cuda: torch.device, tmp_path: Path) -> None:
    # Those watched begin behind the capture, at the fourth iteration.
    assert train_watched(cuda, {}, tmp_path, Points(), cuda_graph=True, watch_from=4) == 9
