"""pytorch/examples fast_neural_style: a perceptual loss, by the features of a network that is not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn, optim
from torch.nn import functional

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digit_sets, digits

CONTENT, STYLE = 1.0, 100.0


def transformer() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 1, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 1, 3, 1, 1)
    )


def vgg() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU()).requires_grad_(False)


def gram_matrix(features: Tensor) -> Tensor:
    count, channels, height, width = features.shape
    flat = features.view(count, channels, height * width)
    return flat.bmm(flat.transpose(1, 2)) / (channels * height * width)


def style_image() -> Tensor:
    return digits(160, 161)[0]


def losses_of(y: Tensor, x: Tensor, network: nn.Module) -> dict[str, Tensor]:
    features_y, features_x = network(y), network(x)
    gram_style = gram_matrix(network(style_image())).expand(len(x), -1, -1)
    content = CONTENT * functional.mse_loss(features_y, features_x)
    return {"content": content, "style": STYLE * functional.mse_loss(gram_matrix(features_y), gram_style)}


def raw(ranks: Ranks) -> Trained:
    data = digit_sets()["train"]
    both = ranks.seeded(lambda: nn.ModuleDict({"transformer": transformer(), "vgg": vgg()}))
    optimizer = optim.Adam(both["transformer"].parameters(), 1e-3)
    trained = Trained(both.state_dict(), {})
    for epoch in range(2):
        content, style = [], []
        for x, _ in ranks.batches(data, 16, epoch):
            optimizer.zero_grad()
            losses = losses_of(both["transformer"](x), x, both["vgg"])
            total = losses["content"] + losses["style"]
            total.backward()
            optimizer.step()
            trained.record(loss=total.item())
            content.append((losses["content"].item() * len(x), len(x)))
            style.append((losses["style"].item() * len(x), len(x)))
        trained.reports.append({"train/content": ranks.mean(content), "train/style": ranks.mean(style)})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class NeuralStyle(Task):
    def model(self) -> nn.Module:
        return nn.ModuleDict({"transformer": transformer(), "vgg": vgg()})

    def data(self) -> Any:
        return {"train": digit_sets()["train"]}

    def forward(self, model: Any, batch: Any) -> Any:
        return losses_of(model["transformer"](batch[0]), batch[0], model["vgg"])

    def loss(self, output: dict[str, Tensor], batch: Any) -> dict[str, Tensor]:
        return output

    def optimizer(self, model: Any) -> optim.Optimizer:
        return optim.Adam(model["transformer"].parameters(), 1e-3)


EXPERIMENT = {"task": NeuralStyle, "epochs": 2, "batch_size": 16}
PORT = Port(EXPERIMENT, raw, places="train 0 3, train 1 2")
