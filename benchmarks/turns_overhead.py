"""Cost of an iteration of two turns, compared with a raw PyTorch loop: a GAN of two perceptrons.

Both draw the digits of loop_overhead in batches of 32, each network with an SGD of its own. A turn
of the benchmark is one epoch. The claim: with the default hooks an iteration takes at most 1.05
times the raw one.

    python -m benchmarks.turns_overhead [rounds]
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import Dataset

from benchmarks.loop_overhead import LR, hookyard, make_loader, print_beside_raw
from benchmarks.perceptron import make_data
from benchmarks.timing import Pause
from orchestrator import Task

NOISE = 16
OPTIMIZERS = {name: {"type": "SGD", "lr": LR, "params": f"{name}.*"} for name in ("g", "d")}


def make_networks() -> nn.ModuleDict:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    return nn.ModuleDict(
        {"g": generator, "d": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))}
    )


def discriminator_loss(networks: Any, real: Tensor, fake: Tensor) -> Tensor:
    return softplus(-networks["d"](real)).mean() + softplus(networks["d"](fake.detach())).mean()


def generator_loss(networks: Any, fake: Tensor) -> Tensor:
    return softplus(-networks["d"](fake)).mean()


@dataclass
class Gan(Task):
    """The same as a task."""

    def model(self) -> nn.Module:
        return make_networks()

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": make_data()}

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Tensor]]:
        fake = model["g"](torch.randn(len(batch[0]), NOISE))
        yield "d", discriminator_loss(model, batch[0], fake)
        yield "g", generator_loss(model, fake)


def raw(data: Dataset[Any], rounds: int, pause: Pause) -> None:
    networks, loader = make_networks(), make_loader(data)
    optimizers = {name: torch.optim.SGD(networks[name].parameters(), lr=LR) for name in networks}
    for _ in range(rounds):
        for images, _labels in loader:
            fake = networks["g"](torch.randn(len(images), NOISE))
            optimizers["d"].zero_grad()
            discriminator_loss(networks, images, fake).backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            generator_loss(networks, fake).backward()
            optimizers["g"].step()
        pause()


def main(rounds: int = 9) -> None:
    torch.set_num_threads(1)
    data = make_data()
    iterations = len(make_loader(data))
    hooked = partial(
        hookyard, data, rounds + 1, task="benchmarks.turns_overhead:Gan", optimizers=OPTIMIZERS
    )
    print_beside_raw(
        "One training iteration of two turns",
        partial(raw, data, rounds + 1),
        hooked,
        rounds,
        iterations,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
