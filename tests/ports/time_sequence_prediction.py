"""pytorch/examples time_sequence_prediction: LBFGS, which evaluates the loss several times in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils.data import SequentialSampler, TensorDataset

from orchestrator import Task
from tests.ports.harness import SEED, Port, Ranks, Trained, seed_all

WIDTH, FUTURE = 6, 5
WAVES = torch.sin((torch.arange(20.0) + torch.tensor([[3.0], [-5.0], [8.0], [1.0], [-9.0]])) / 3).double()
TRAIN, TEST = WAVES[2:], WAVES[:2]


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, waves: Tensor, future: int = 0) -> Tensor:
        outputs: list[Tensor] = []
        first = second = (torch.zeros(len(waves), WIDTH).double(), torch.zeros(len(waves), WIDTH).double())
        known = waves.split(1, dim=1)
        for moment in range(len(known) + future):
            first = self.lstm1(known[moment] if moment < len(known) else outputs[-1], first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def made() -> tuple[nn.Module, optim.LBFGS]:
    model = Sequence().double()
    return model, optim.LBFGS(model.parameters(), lr=0.8, max_iter=5)


def train_step(model: nn.Module, optimizer: optim.LBFGS) -> float:
    def closure() -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(TRAIN[:, :-1]), TRAIN[:, 1:])
        loss.backward()
        return loss.item()

    return float(optimizer.step(closure))


@torch.no_grad()
def test_loss(model: nn.Module) -> float:
    predicted = model(TEST[:, :-1], future=FUTURE)
    return nn.functional.mse_loss(predicted[:, :-FUTURE], TEST[:, 1:]).item()


def raw(ranks: Ranks) -> Trained:
    seed_all(SEED)
    model, optimizer = made()
    trained = Trained(model.state_dict(), {})
    for _ in range(5):
        trained.record(loss=train_step(model, optimizer))
        trained.reports.append({"val/loss": test_loss(model)})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class TimeSequence(Task):
    def model(self) -> nn.Module:
        return Sequence().double()

    def data(self) -> Mapping[str, Any]:
        return {"train": TensorDataset(TRAIN), "val": TensorDataset(TEST)}

    def sampler(self, dataset: Any, phase: str) -> Any:
        return SequentialSampler(dataset)

    def forward(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            return model(batch[0][:, :-1])  # type: ignore[no-any-return]
        return model(batch[0][:, :-1], future=FUTURE)[:, :-FUTURE]  # type: ignore[no-any-return]

    def loss(self, output: Tensor, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(output, batch[0][:, 1:])


EXPERIMENT: dict[str, Any] = {
    "task": TimeSequence,
    "epochs": 5,
    "batch_size": len(TRAIN),
    "optimizer": {"type": "LBFGS", "lr": 0.8, "max_iter": 5},
}
PORT = Port(EXPERIMENT, raw, places="train 1 0, val 3 0")
