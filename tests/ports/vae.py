"""pytorch/examples vae: a variational autoencoder, which draws in training, in validation and after
it.

The original trains on the loss's sum over the batch; a task's loss is the mean over its samples,
and so is the raw loop's here.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from hooks import Hook, State
from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digit_sets


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 20), nn.Linear(20, 4), nn.Linear(20, 4)
        self.fc3, self.fc4 = nn.Linear(4, 20), nn.Linear(20, 64)

    def decode(self, z: Tensor) -> Any:
        return self.fc4(self.fc3(z).relu()).sigmoid()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.fc1(x.view(-1, 64)).relu()
        mu, log_variance = self.fc21(hidden), self.fc22(hidden)
        z = mu + torch.randn_like(mu) * (0.5 * log_variance).exp()
        return self.decode(z), mu, log_variance


def losses_of(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    decoded, mu, log_variance = output
    bce = functional.binary_cross_entropy(decoded.float(), x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + log_variance - mu.pow(2) - log_variance.exp())
    return bce / len(x), kld / len(x)


def raw(ranks: Ranks) -> Trained:
    data = digit_sets()
    model = ranks.seeded(VAE)
    shared = ranks.shared(model)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    trained = Trained(model.state_dict(), {})
    for epoch in range(3):
        model.train()
        train_losses = []
        for images, _ in ranks.batches(data["train"], 16, epoch):
            optimizer.zero_grad()
            bce, kld = losses_of(shared(images), images)
            loss = bce + kld
            loss.backward()
            trained.record(loss=loss.item(), bce=bce.item(), kld=kld.item())
            train_losses.append((loss.item() * len(images), len(images)))
            optimizer.step()
        model.eval()
        losses = []
        with torch.no_grad():
            for images, _ in ranks.batches(data["val"], 20):
                bce, kld = losses_of(model(images), images)
                losses.append(((bce + kld).item() * len(images), len(images)))
            sample = model.decode(torch.randn(8, 4))
        report = {"train/loss": ranks.mean(train_losses), "val/loss": ranks.mean(losses)}
        trained.reports.append({**report, "sampled": sample.double().mean().item()})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class Autoencoder(Task):
    def model(self) -> nn.Module:
        return VAE()

    def data(self) -> Any:
        return digit_sets()

    def loss(self, output: Any, batch: Any) -> dict[str, Tensor]:
        return dict(zip(("bce", "kld"), losses_of(output, batch[0]), strict=True))


@dataclass
class Samples(Hook):
    """Draws from the decoder after each validation."""

    def on_phase_end(self, state: State) -> None:
        if state.phase != "val":
            return
        with torch.no_grad():
            sample = cast(VAE, state.module).decode(torch.randn(8, 4))
        state.metrics["sampled"] = sample.double().mean().item()


EXPERIMENT = {
    "task": Autoencoder,
    "epochs": 3,
    "batch_size": 16,
    "optimizer": {"type": "Adam", "lr": 1e-3},
    "loader": {"eval_batch_size": 20},
    "hooks": {"samples": Samples()},
}
PORT = Port(EXPERIMENT, raw)
