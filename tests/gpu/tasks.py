"""Tasks for the tests on a device, the raw loop that they are compared with, and a loop on a
device."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from hooks import Hook
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.tasks import Points, experiment

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Pictures(Points):
    """The points as pictures of one pixel with five channels, seen by a convolution and a norm."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (5, 1, 1)),
            nn.Conv2d(5, 8, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 3),
        )


def loop_on(
    device: torch.device,
    task: Points | None = None,
    hooks: Mapping[str, Hook] | None = None,
    *,
    recorder: Recorder | None = None,
    artifacts: Path = Path("."),
    store: Any = None,
    **settings: Any,
) -> Loop:
    world = World(device=device)
    return Loop(
        task or Points(),
        experiment(**settings),
        hooks or {},
        RunContext(world=world, recorder=recorder or Recorder(), artifacts=artifacts, store=store),
    )


def raw_on(
    device: torch.device,
    task: Points,
    *,
    epochs: int = 2,
    precision: str = "fp32",
    accumulate: int = 1,
    max_norm: float | None = None,
    channels_last: bool = False,
) -> nn.Module:
    """What torch's own loop makes of the task with the settings of `tests.tasks.experiment`."""
    torch.manual_seed(0)
    model = task.model()
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.to(device)
    torch.manual_seed(0)
    data: Any = task.data()["train"]
    loader = DataLoader(
        data,
        8,
        sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=0),
        generator=torch.Generator(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    for _ in range(epochs):
        batches = [
            (points.to(device), labels.to(device), index) for points, labels, index in loader
        ]
        for begin in range(0, len(batches), accumulate):
            group = batches[begin : begin + accumulate]
            for batch in group:
                with torch.autocast(
                    device.type, DTYPES.get(precision), enabled=precision in DTYPES
                ):
                    loss = task.loss(model(batch[0]), batch)
                scaler.scale(loss / len(group)).backward()
            scaler.unscale_(optimizer)
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model
