"""pytorch/examples super_resolution: a pixel shuffle, and a metric that is a mean over batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digits


class Net(nn.Module):
    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, 1, 2), nn.Conv2d(6, upscale_factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv2.weight)

    def forward(self, x: Tensor) -> Any:
        return self.pixel_shuffle(self.conv2(self.conv1(x).relu()))


def images() -> dict[str, TensorDataset]:
    sets = {"train": digits(0, 100)[0], "val": digits(100, 150)[0]}
    return {phase: TensorDataset(functional.avg_pool2d(large, 2), large) for phase, large in sets.items()}


def raw(ranks: Ranks) -> Trained:
    data = images()
    model = ranks.seeded(lambda: Net(2))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    trained = Trained(model.state_dict(), {})
    for epoch in range(3):
        for small, large in ranks.batches(data["train"], 16, epoch):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(small), large)
            loss.backward()
            trained.record(loss=loss.item())
            optimizer.step()
        with torch.no_grad():
            ratios = [
                10 * log10(1 / functional.mse_loss(model(small), large).item())
                for small, large in ranks.batches(data["val"], 20)
            ]
        trained.reports.append({"val/psnr": sum(ratios) / len(ratios)})
    trained.optimizer = optimizer.state_dict()
    return trained


class MeanPsnr:
    """The mean over batches, as the original has it, of the peak signal-to-noise ratio."""

    def __init__(self) -> None:
        self.ratios: list[float] = []

    def to(self, device: torch.device) -> MeanPsnr:
        return self

    def update(self, output: Tensor, target: Tensor) -> None:
        self.ratios.append(10 * log10(1 / functional.mse_loss(output, target).item()))

    def compute(self) -> float:
        return sum(self.ratios) / len(self.ratios)


@dataclass
class SuperResolution(Task):
    upscale_factor: int = 2

    def model(self) -> nn.Module:
        return Net(self.upscale_factor)

    def data(self) -> Any:
        return images()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.mse_loss(output, batch[1])

    def meters(self) -> dict[str, Any]:
        return {"psnr": MeanPsnr()}


EXPERIMENT = {
    "task": SuperResolution,
    "epochs": 3,
    "batch_size": 16,
    "optimizer": {"type": "Adam", "lr": 0.01},
    "loader": {"eval_batch_size": 20},
}
PORT = Port(EXPERIMENT, raw)
