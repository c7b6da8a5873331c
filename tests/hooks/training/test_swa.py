"""Stochastic weight averaging as torch.optim.swa_utils has it, made of ema and a scheduler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from hooks import Hook, Interval
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from hooks.training.param_scheduler import ParamScheduler
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Points, Rows, described

TASK = Points(batch_norm=True)
BEGIN = 3
EPOCHS = 7
SCHEDULE = {"swa_lr": 0.02, "anneal_epochs": 4, "anneal_strategy": "linear"}


def torchs_recipe() -> tuple[AveragedModel, list[float]]:
    """The recipe of torch's documentation, its averaged model and the learning rate of each
    epoch."""
    torch.manual_seed(0)
    model = TASK.model()
    dataset: Any = TASK.data()["train"]
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averaged = AveragedModel(model, use_buffers=True)
    scheduler = SWALR(optimizer, **SCHEDULE)
    rates = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        rates.append(optimizer.param_groups[0]["lr"])
        for points, labels, _ in DataLoader(dataset, 26, sampler=sampler):
            optimizer.zero_grad()
            functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
        if epoch >= BEGIN:
            averaged.update_parameters(model)
        scheduler.step()
    return averaged, rates


def run_loop(root: Path) -> tuple[Rows, dict[str, Any]]:
    """The same as a YAML file says it: two steps an epoch, and an update of the average at the end
    of each."""
    hooks: dict[str, Hook] = {
        "sampler_seed": DistSamplerSeed(),
        "scheduler": ParamScheduler(),
        "ema": EMA(
            average="stochastic", buffers="ema", begin=Interval(BEGIN), every=Interval(2, "steps")
        ),
        "checkpoint": Checkpoint(keep=None),
    }
    experiment = described(epochs=EPOCHS, batch_size=26, scheduler={"type": "SWALR", **SCHEDULE})
    rows = Rows()
    loop = Loop(
        TASK, experiment, hooks, RunContext(store=CheckpointStore(Storage(root)), recorder=rows)
    )
    return rows, [report.metrics for report in loop.run()][-1]


def evaluated(model: nn.Module) -> float:
    dataset: Any = TASK.data()["val"]
    model.eval()
    with torch.no_grad():
        return functional.cross_entropy(model(dataset.points), dataset.labels).item()


def test_swa_with_batch_norm_update_equals_the_recipe_of_torch(tmp_path: Path) -> None:
    averaged, rates = torchs_recipe()
    rows, report = run_loop(tmp_path)
    store = CheckpointStore(Storage(tmp_path))
    record = store.load(store.list_names()[-1], "ema.pt")
    updates = store.load(store.list_names()[-1], "hooks.pt")["ema"]["updates"]
    assert updates["parameters"][None]["count"] == int(averaged.n_averaged) == EPOCHS - BEGIN
    for name, value in averaged.module.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(record["model"][name], value)
    assert [lr for (lr,) in rows.columns("lr", phase="train")][::2] == pytest.approx(rates)
    assert rates[0] == 0.1
    assert rates[-1] == pytest.approx(0.02)
    assert report["val/loss"] == pytest.approx(evaluated(averaged), rel=1e-5)
