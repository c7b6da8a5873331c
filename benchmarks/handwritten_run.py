"""The training of experiments/digits.yaml as one would write it against Ray Train by hand;
run_overhead's peer.

python -m benchmarks.handwritten_run FOLDER
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Ray's own default lets a run go on only every two seconds; the same setting as Hookyard's, so that
# it is no difference.
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"

import ray
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.nn import functional
from torch.utils.data import DataLoader

EPOCHS = 5


def train(config: dict[str, Any]) -> None:
    from experiments.digits import Digits

    torch.manual_seed(0)
    task = Digits(width=32)
    data = task.data()
    model = prepare_model(task.model())
    train_loader = prepare_data_loader(DataLoader(data["train"], batch_size=64, shuffle=True))
    val_loader = prepare_data_loader(DataLoader(data["val"], batch_size=64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for epoch in range(EPOCHS):
        if get_context().get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, list(model.parameters()), 0.1)
        scheduler.step()
        report_epoch(model, optimizer, epoch, float(loss.detach()), accuracy(model, val_loader))


def accuracy(model: torch.nn.Module, loader: Any) -> float:
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            counts += torch.tensor([(model(images).argmax(dim=1) == labels).sum(), len(labels)])
    torch.distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def report_epoch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, epoch: int, loss: float, val: float
) -> None:
    metrics = {"epoch": epoch, "train/loss": loss, "val/accuracy": val}
    if get_context().get_world_rank() != 0:
        report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            Path(folder) / "state.pt",
        )
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main(folder: str) -> None:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="handwritten",
            storage_path=folder,
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    ).fit()
    print(result.metrics)


if __name__ == "__main__":
    main(sys.argv[1])
