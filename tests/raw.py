"""Training without Hookyard, for what is to be the same with it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from tests.tasks import Points


def raw_training(
    task: Points,
    *,
    epochs: int = 2,
    batch_size: int = 8,
    accumulate: int = 1,
    max_steps: int | None = None,
    seed: int = 0,
    new_order: bool = False,
    dtype: torch.dtype | None = None,
    optimize: Callable[[nn.Module], Optimizer] = lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9
    ),
    schedule: Callable[[Optimizer], Any] = lambda optimizer: None,
) -> nn.Module:
    """Torch's sampler, loader and optimizer in three plain loops; a scheduler steps after each
    step."""
    torch.manual_seed(seed)
    model = task.model()
    torch.manual_seed(seed)
    dataset: Any = task.data()["train"]
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler, generator=torch.Generator())
    optimizer = optimize(model)
    scheduler = schedule(optimizer)
    steps = 0
    for epoch in range(epochs):
        if new_order:
            sampler.set_epoch(epoch)
        batches = list(loader)
        groups = [
            batches[begin : begin + accumulate] for begin in range(0, len(batches), accumulate)
        ]
        for group in groups:
            for points, labels, _ in group:
                with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                    loss = functional.cross_entropy(model(points), labels)
                (loss / len(group)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
            steps += 1
            if steps == max_steps:
                return model
    return model
