"""pytorch/examples imagenet: SGD with momentum and weight decay, top-5 accuracy, DDP; the warm-up
is in steps here."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained, digit_sets


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.block, self.fc = nn.Conv2d(8, 8, 3, 1, 1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.norm(self.stem(x)).relu()
        return self.fc((x + self.block(x)).relu().mean((2, 3)))


def hits(output: Tensor, target: Tensor, k: int) -> Tensor:
    return (output.topk(k).indices == target[:, None]).any(1)


def raw(ranks: Ranks) -> Trained:
    data = digit_sets()
    model = ranks.seeded(ResNet)
    shared = ranks.shared(model)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    steps = 3 * len(ranks.batches(data["train"], 16, 0))
    warmup = LinearLR(optimizer, 0.001, total_iters=4)
    scheduler = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, steps - 4)], [4])
    trained = Trained(model.state_dict(), {})
    for epoch in range(3):
        model.train()
        for images, target in ranks.batches(data["train"], 16, epoch):
            with ranks.autocast():
                loss = functional.cross_entropy(shared(images), target)
            trained.record(loss=loss.item(), lr=float(scheduler.get_last_lr()[0]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        losses, top1, top5 = [], [], []
        with torch.no_grad():
            for images, target in ranks.batches(data["val"], 20):
                with ranks.autocast():
                    output = model(images)
                    losses.append(
                        (functional.cross_entropy(output, target).item() * len(images), len(images))
                    )
                top1.append((hits(output, target, 1).sum().item(), len(images)))
                top5.append((hits(output, target, 5).sum().item(), len(images)))
        means = {"loss": ranks.mean(losses), "top1": ranks.mean(top1), "top5": ranks.mean(top5)}
        trained.reports.append({f"val/{name}": value for name, value in means.items()})
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class ImageNet(Task):
    def model(self) -> nn.Module:
        return ResNet()

    def data(self) -> Any:
        return digit_sets()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {f"top{k}": hits(output, batch[1], k).float() for k in (1, 5)}


EXPERIMENT = {
    "task": ImageNet,
    "epochs": 3,
    "batch_size": 16,
    "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
    "scheduler": {"type": "CosineAnnealingLR", "warmup": "4 steps"},
    "hooks": {"param_scheduler": {"every": "1 step"}},
    "loader": {"eval_batch_size": 20},
}
PORT = Port(EXPERIMENT, raw)
