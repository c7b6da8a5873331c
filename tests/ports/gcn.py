"""pytorch/examples gcn: a graph whose nodes are split at random, and a batch that is all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from orchestrator import Task
from tests.ports.harness import SEED, Port, Ranks, Trained, digits, seed_all


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2, self.dropout = nn.Linear(64, 8), nn.Linear(8, 10), nn.Dropout(0.5)

    def forward(self, features: Tensor, adjacency: Tensor) -> Any:
        x = self.dropout(torch.sparse.mm(adjacency, self.gc1(features)).relu())
        return torch.sparse.mm(adjacency, self.gc2(x)).log_softmax(1)


def load_graph() -> tuple[Tensor, Tensor, Tensor]:
    images, labels = digits(0, 80)
    features = images.flatten(1)
    near = (torch.cdist(features, features) < 2.2).float()
    scale = near.sum(1).rsqrt()
    return features, labels, (scale[:, None] * near * scale).to_sparse()


def split() -> tuple[Tensor, Tensor]:
    nodes = torch.randperm(80)
    return nodes[30:], nodes[:30]


def raw(ranks: Ranks) -> Trained:
    seed_all(SEED)
    features, labels, adjacency = load_graph()
    train, val = split()
    model = GCN()
    seed_all(SEED)
    optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    trained = Trained(model.state_dict(), {})
    for _ in range(4):
        model.train()
        optimizer.zero_grad()
        loss = functional.nll_loss(model(features, adjacency)[train], labels[train])
        loss.backward()
        optimizer.step()
        trained.record(loss=loss.item())
        model.eval()
        with torch.no_grad():
            output = model(features, adjacency)[val]
        val_loss = functional.nll_loss(output, labels[val]).item()
        accuracy = (output.argmax(1) == labels[val]).sum().item() / len(val)
        trained.reports.append({"val/loss": ranks.mean([(val_loss * len(val), len(val))]), "val/accuracy": accuracy})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class Graph(Task):
    """A sample is the whole graph with the nodes that count; a batch counts these."""

    def model(self) -> nn.Module:
        return GCN()

    def data(self) -> Any:
        graph = load_graph()
        return {phase: [(*graph, nodes)] for phase, nodes in zip(("train", "val"), split(), strict=True)}

    def collate(self, samples: list[Any]) -> Any:
        return samples[0]

    def batch_size(self, batch: Any) -> int:
        return len(batch[3])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        features, _, adjacency, nodes = batch
        return model(features, adjacency)[nodes]

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.nll_loss(output, batch[1][batch[3]])

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (output.argmax(1) == batch[1][batch[3]]).float()}


EXPERIMENT = {
    "task": Graph,
    "epochs": 4,
    "batch_size": 1,
    "optimizer": {"type": "Adam", "lr": 0.01, "weight_decay": 5e-4},
}
PORT = Port(EXPERIMENT, raw, places="train 1 0, val 2 0")
