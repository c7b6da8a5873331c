"""pytorch/examples siamese_network: pairs of images, drawn as they are fetched, in training and in
validation."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import Dataset

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digits


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, first: Tensor, second: Tensor) -> Any:
        return self.fc(torch.cat((self.body(first), self.body(second)), 1)).sigmoid().squeeze(1)


class Pairs(Dataset[Any]):
    """Two images, of one class where the index is even, of two classes where it is odd."""

    def __init__(self, first: int, last: int) -> None:
        self.images, labels = digits(first, last)
        self.of_class = [(labels == number).nonzero().flatten().tolist() for number in range(10)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if index % 2 == 0:
            first, second = random.sample(self.of_class[random.randint(0, 9)], 2)
        else:
            first, second = (
                random.choice(self.of_class[number]) for number in random.sample(range(10), 2)
            )
        return self.images[first], self.images[second], torch.tensor(float(index % 2 == 0))


def pairs() -> dict[str, Pairs]:
    return {"train": Pairs(0, 100), "val": Pairs(100, 160)}


def raw(ranks: Ranks) -> Trained:
    data = pairs()
    model = ranks.seeded(SiameseNetwork)
    shared = ranks.shared(model)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    trained = Trained(model.state_dict(), {})
    for epoch in range(3):
        model.train()
        for first, second, targets in ranks.batches(data["train"], 10, epoch):
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy(shared(first, second), targets)
            loss.backward()
            trained.record(loss=loss.item())
            optimizer.step()
        model.eval()
        losses, correct = [], []
        with torch.no_grad():
            for first, second, targets in ranks.batches(data["val"], 20):
                outputs = model(first, second)
                losses.append(
                    (
                        functional.binary_cross_entropy(outputs, targets).item() * len(first),
                        len(first),
                    )
                )
                correct.append((((outputs > 0.5) == targets).sum().item(), len(first)))
        trained.reports.append(
            {"val/loss": ranks.mean(losses), "val/accuracy": ranks.mean(correct)}
        )
        scheduler.step()
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class Siamese(Task):
    def model(self) -> nn.Module:
        return SiameseNetwork()

    def data(self) -> Any:
        return pairs()

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0], batch[1])

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.binary_cross_entropy(output, batch[2])

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": ((output > 0.5) == batch[2]).float()}


EXPERIMENT = {
    "task": Siamese,
    "epochs": 3,
    "batch_size": 10,
    "optimizer": {"type": "Adadelta", "lr": 1.0},
    "scheduler": {"type": "StepLR", "step_size": 1, "gamma": 0.7},
    "loader": {"eval_batch_size": 20},
}
PORT = Port(EXPERIMENT, raw)
