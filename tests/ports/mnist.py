"""pytorch/examples mnist: a convolutional network, Adadelta, StepLR and the negative log-likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digit_sets


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.conv2(self.conv1(x).relu()).relu()
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        return self.fc2(self.dropout2(self.fc1(x).relu())).log_softmax(1)


def raw(ranks: Ranks, make: Callable[[], nn.Module] = Net, lr: float = 1.0) -> Trained:
    data = digit_sets()
    model = ranks.seeded(make)
    shared = ranks.shared(model)
    optimizer = optim.Adadelta(model.parameters(), lr=lr)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    trained = Trained(model.state_dict(), {})
    for epoch in range(3):
        model.train()
        train_losses = []
        for images, labels in ranks.batches(data["train"], 16, epoch):
            optimizer.zero_grad()
            with ranks.autocast():
                loss = functional.nll_loss(shared(images), labels)
            loss.backward()
            trained.record(loss=loss.item(), lr=float(scheduler.get_last_lr()[0]))
            train_losses.append((loss.item() * len(images), len(images)))
            optimizer.step()
        model.eval()
        losses, correct = [], []
        with torch.no_grad():
            for images, labels in ranks.batches(data["val"], 20):
                with ranks.autocast():
                    output = model(images)
                    losses.append((functional.nll_loss(output, labels).item() * len(images), len(images)))
                correct.append(((output.argmax(1) == labels).sum().item(), len(images)))
        scheduler.step()
        report = {"train/loss": ranks.mean(train_losses), "val/loss": ranks.mean(losses)}
        trained.reports.append({**report, "val/accuracy": ranks.mean(correct)})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class Mnist(Task):
    def model(self) -> nn.Module:
        return Net()

    def data(self) -> Any:
        return digit_sets()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.nll_loss(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (output.argmax(1) == batch[1]).float()}


EXPERIMENT: dict[str, Any] = {
    "task": Mnist,
    "epochs": 3,
    "batch_size": 16,
    "optimizer": {"type": "Adadelta", "lr": 1.0},
    "scheduler": {"type": "StepLR", "step_size": 1, "gamma": 0.7},
    "loader": {"eval_batch_size": 20},
}
PORT = Port(EXPERIMENT, raw)
