"""pytorch/examples dcgan: two networks, two optimizers, and images of fixed noise at the end of each epoch.

The original has no validation; here it measures how the discriminator takes new images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from hooks import Hook, State
from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digit_sets

NOISE = 6


class Networks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.d = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
            nn.Flatten(0),
        )
        self.apply(initialize)


def initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    if isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def criterion(output: Tensor, label: float) -> Tensor:
    return functional.binary_cross_entropy(output, torch.full_like(output, label))


def noise(images: Tensor) -> Tensor:
    return torch.randn(len(images), NOISE, 1, 1)


def raw(ranks: Ranks) -> Trained:
    data = digit_sets()
    both = ranks.seeded(Networks)
    fixed_noise = torch.randn(8, NOISE, 1, 1)
    optimizers = {name: optim.Adam(getattr(both, name).parameters(), lr=2e-3, betas=(0.5, 0.999)) for name in "dg"}
    trained = Trained(both.state_dict(), {})
    for epoch in range(3):
        both.train()
        for images, _ in ranks.batches(data["train"], 16, epoch):
            both.d.zero_grad()
            real_error = criterion(both.d(images), 1.0)
            real_error.backward()
            fake = both.g(noise(images))
            fake_error = criterion(both.d(fake.detach()), 0.0)
            fake_error.backward()
            optimizers["d"].step()
            both.g.zero_grad()
            error = criterion(both.d(fake), 1.0)
            error.backward()
            optimizers["g"].step()
            trained.record(loss_d=(real_error + fake_error).item(), loss_g=error.item(), real_d=real_error.item())
        drawn = both.g(fixed_noise)  # with the batch's statistics, which counts in the running ones
        both.eval()
        with torch.no_grad():
            losses = [
                (criterion(both.d(both.g(noise(images))), 1.0).item() * len(images), len(images))
                for images, _ in ranks.batches(data["val"], 20)
            ]
        trained.reports.append({"drawn": drawn.double().mean().item(), "val/loss": ranks.mean(losses)})
    trained.optimizer = {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
    return trained


@dataclass
class DcGan(Task):
    def model(self) -> nn.Module:
        return Networks()

    def data(self) -> Any:
        return digit_sets()

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
        real = criterion(model.d(batch[0]), 1.0)
        fake = model.g(noise(batch[0]))
        yield "d", {"real": real, "fake": criterion(model.d(fake.detach()), 0.0)}
        yield "g", criterion(model.d(fake), 1.0)

    def forward(self, model: Any, batch: Any) -> Any:
        return model.d(model.g(noise(batch[0])))

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return criterion(output, 1.0)


@dataclass
class Drawings(Hook):
    """Draws images of fixed noise at the end of each epoch."""

    def on_start(self, state: State) -> None:
        if not hasattr(self, "noise"):
            self.noise = torch.randn(8, NOISE, 1, 1)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            state.metrics["drawn"] = cast(Networks, state.module).g(self.noise).double().mean().item()

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noise = state["noise"]


ADAM = {"type": "Adam", "lr": 2e-3, "betas": [0.5, 0.999]}
EXPERIMENT = {
    "task": DcGan,
    "epochs": 3,
    "batch_size": 16,
    "optimizers": {"d": {**ADAM, "params": "d.*"}, "g": {**ADAM, "params": "g.*"}},
    "loader": {"eval_batch_size": 20},
    "hooks": {"drawings": Drawings},
}
PORT = Port(EXPERIMENT, raw)
