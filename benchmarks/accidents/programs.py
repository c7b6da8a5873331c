"""Small programs that the random experiments train: models, data and the task."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from orchestrator import Task, TrainingSession

FEATURES, CLASSES, LETTERS = 6, 3, 11


class Perceptron(nn.Module):
    """BatchNorm for buffers, dropout for random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 12),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(12, CLASSES),
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


class LanguageModel(nn.Module):
    """A transformer whose output layer shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, LETTERS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(letters)))


class Denoiser(nn.Module):
    """Draws times and noise, in validation too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES + 1, 16), nn.SiLU(), nn.Linear(16, FEATURES))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        time, noise = torch.rand(len(features), 1), torch.randn_like(features)
        noisy = features * (1 - time) + noise * time
        return self.layers(torch.cat([noisy, time], 1)), noise


MODELS = {
    "perceptron": Perceptron,
    "augmented": Perceptron,
    "language": LanguageModel,
    "denoiser": Denoiser,
}


class Augmented(Dataset[Any]):
    """Samples with noise from each of the three generators."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.randn(FEATURES) + 0.01 * random.random() + 0.01 * np.random.rand()
        return self.features[index] + noise, self.labels[index]


class Stream(IterableDataset[Any]):
    """A dataset in another order in each pass."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.current_pass = dataset, 0

    def set_epoch(self, epoch: int) -> None:
        self.current_pass = epoch

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(
            len(self.dataset), generator=torch.Generator().manual_seed(100 + self.current_pass)
        )
        return (self.dataset[index] for index in order.tolist())


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(self.dataset)


STREAMS = {"sized": SizedStream, "endless": Stream}


def datasets(program: str, train: int, val: int, stream: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    if program == "language":
        inputs = torch.randint(LETTERS, (train + val, 7), generator=generator)
        targets = inputs.roll(-1, 1)
    else:
        inputs = torch.randn(train + val, FEATURES, generator=generator)
        targets = inputs[:, :CLASSES].argmax(1)
    kind = Augmented if program == "augmented" else TensorDataset
    trained: Any = kind(inputs[:train], targets[:train])
    return {
        "train": STREAMS[stream](trained) if stream else trained,
        "val": TensorDataset(inputs[train:], targets[train:]),
    }


def loss(program: str, output: Any, targets: Tensor) -> Tensor:
    if program == "language":
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())
    if program == "denoiser":
        return functional.mse_loss(*output)
    return functional.cross_entropy(output, targets)


@dataclass
class Program(Task):
    program: str = "perceptron"
    train_samples: int = 20
    val_samples: int = 7
    stream: str = ""

    def model(self) -> nn.Module:
        return MODELS[self.program]()

    def data(self) -> dict[str, Any]:
        return datasets(self.program, self.train_samples, self.val_samples, self.stream)

    def loss(self, output: Any, batch: Any) -> Tensor:
        return loss(self.program, output, batch[1])


class Networks(nn.Module):
    """A generator and a discriminator of features."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, FEATURES)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.discriminator(features)


@dataclass
class Adversarial(Program):
    """Trains two optimizers in turn, and carries the noise of one batch to the next."""

    def __post_init__(self) -> None:
        self.noise = torch.zeros(1, 2)

    def model(self) -> nn.Module:
        return Networks()

    def data(self) -> dict[str, Any]:
        return datasets("perceptron", self.train_samples, self.val_samples, self.stream)

    def turns(self, model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor]]:
        real = torch.ones(len(batch[0]), 1)
        self.noise = 0.5 * self.noise.mean(0) + torch.randn(len(real), 2)
        fakes = model.generator(self.noise)
        score = functional.binary_cross_entropy_with_logits
        yield (
            "discriminator",
            score(model.discriminator(batch[0]), real)
            + score(model.discriminator(fakes.detach()), 0 * real),
        )
        yield "generator", score(model.discriminator(fakes), real)

    def loss(self, output: Any, batch: Any) -> Tensor:
        return output.square().mean()

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noise = state["noise"]


@dataclass
class CustomLoop(Program):
    """Trains in a loop of its own, and saves in the middle of an epoch."""

    save_every: int = 2

    def train(self, session: TrainingSession, batch_size: int = 4) -> Iterator[dict[str, float]]:
        data, model = datasets("perceptron", self.train_samples, self.val_samples, ""), Perceptron()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        place: dict[str, Any] = {"batch": 0, "total": 0.0}
        session.restore(model=model, optimizer=optimizer, place=place)
        features, labels = data["train"].tensors
        for epoch in range(session.epoch, session.config["epochs"]):
            order = torch.randperm(
                len(features), generator=torch.Generator().manual_seed(epoch)
            ).split(batch_size)
            for batch in [batch for batch in order if len(batch) > 1][place["batch"] :]:
                optimizer.zero_grad()
                value = functional.cross_entropy(model(features[batch]), labels[batch])
                value.backward()
                optimizer.step()
                place |= {"batch": place["batch"] + 1, "total": place["total"] + value.item()}
                session.record(batch_size=len(batch), loss=value)
                if session.step % self.save_every == 0:
                    session.save()
                if session.stop_requested:
                    return
            mean = place["total"] / place["batch"]
            place |= {"batch": 0, "total": 0.0}
            yield {"train/loss": mean, "val/loss": validate(model, data["val"])}


@torch.no_grad()
def validate(model: nn.Module, dataset: TensorDataset) -> float:
    features, labels = dataset.tensors
    model.eval()
    value = functional.cross_entropy(model(features), labels).item()
    model.train()
    return value
