"""The random numbers that samples draw begin as docs/from-a-loop.md says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hooks import Hook, State
from orchestrator.loop.loop import Loop
from tests.tasks import Points, experiment


@dataclass
class Noisy(Dataset[Any]):
    """Each sample draws a number."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> tuple[Tensor, int, int]:
        return torch.rand(5), place % 3, place


@dataclass
class NoisyPoints(Points):
    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": Noisy()}

    def model(self) -> nn.Module:
        return nn.Linear(5, 3)


class Batches(Hook):
    def __init__(self) -> None:
        self.drawn: list[Tensor] = []

    def on_batch(self, state: State) -> None:
        self.drawn.append(state.batch[0])


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_samples_draw_from_the_seed_of_the_rank_or_of_the_batch_in_a_process(processes: int) -> None:
    hook, batch_size = Batches(), 6
    settings = experiment(epochs=2, seed=4, batch_size=batch_size, loader={"num_workers": processes})
    list(Loop(NoisyPoints(), settings, {"batches": hook}).run())
    torch.manual_seed(4)
    expected = []
    for epoch in range(2):
        for place in range(0, 16, batch_size):
            if processes:
                torch.manual_seed(int(np.random.SeedSequence([4, epoch, place]).generate_state(1)[0]))
            expected.append(torch.stack([torch.rand(5) for _ in range(min(batch_size, 16 - place))]))
    assert all(torch.equal(drawn, reference) for drawn, reference in zip(hook.drawn, expected, strict=True))
