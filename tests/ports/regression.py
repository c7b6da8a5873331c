"""pytorch/examples regression: batches without end, until the loss is small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks import Hook, State
from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained

DEGREE, SMALL = 2, 0.02
WEIGHTS, BIAS = torch.tensor([[2.0], [-1.5]]), 0.7


def get_batch() -> tuple[Tensor, Tensor]:
    points = torch.randn(32).unsqueeze(1)
    features = torch.cat([points**power for power in range(1, DEGREE + 1)], 1)
    return features, features.mm(WEIGHTS) + BIAS


def raw(ranks: Ranks) -> Trained:
    fc = ranks.seeded(lambda: nn.Linear(DEGREE, 1))
    optimizer = torch.optim.SGD(fc.parameters(), lr=0.1)
    trained = Trained(fc.state_dict(), {})
    for _ in count(1):
        x, y = get_batch()
        fc.zero_grad()
        loss = functional.smooth_l1_loss(fc(x), y)
        loss.backward()
        optimizer.step()
        trained.record(loss=loss.item())
        if loss.item() < SMALL:
            break
    trained.optimizer = optimizer.state_dict()
    steps = len(trained.rows["loss"])
    trained.reports = [{"step": min(step, steps)} for step in range(20, steps + 20, 20)]
    return trained


class Batches:
    """Batches that are drawn as they are asked for."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield get_batch()

    def state_dict(self) -> dict[str, Any]:
        return {}  # what it draws from is in every checkpoint

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass
class Polynomial(Task):
    def model(self) -> nn.Module:
        return nn.Linear(DEGREE, 1)

    def data(self) -> Any:
        return {"train": Batches()}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.smooth_l1_loss(output, batch[1])


@dataclass
class UntilSmall(Hook):
    """Ends training once the loss is small."""

    loss: float = SMALL

    def on_step(self, state: State) -> None:
        if state.loss is not None and state.loss.item() < self.loss:
            state.request_stop(f"the loss is below {self.loss}")


EXPERIMENT = {
    "task": Polynomial,
    "steps": 1_000_000,
    "epoch_steps": 20,
    "optimizer": {"type": "SGD", "lr": 0.1},
    "hooks": {"until_small": UntilSmall()},
}
PORT = Port(EXPERIMENT, raw, places="train 1 2, train 1 8")
