"""The numbers of a run begin as docs/from-a-loop.md says, so that a port can be compared with its raw loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler

from hooks import Hook, State
from orchestrator import Experiment, run
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, Seen, experiment, numbers


@dataclass
class Draws(Points):
    """Draws in `data()`, as it makes its samples."""

    is_drawing: bool = True

    def data(self) -> Mapping[str, Dataset[Any]]:
        if self.is_drawing:
            torch.randn(7)
        return super().data()


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("is_drawing", [True, False])
def test_the_model_is_made_after_the_data_with_the_seed(seed: int, is_drawing: bool) -> None:
    loop = Loop(Draws(is_drawing=is_drawing), experiment(seed=seed), {})
    torch.manual_seed(seed)
    if is_drawing:
        torch.randn(7)
    assert numbers(loop.state.module) == numbers(Points().model())


class First(Hook):
    """Keeps what is drawn first as a run begins."""

    def on_start(self, state: State) -> None:
        state.info["drawn"] = torch.rand(3).tolist()


def _on_a_rank(rank: int, world_size: int, seed: int) -> tuple[Any, Any, list[list[int]]]:
    seen = Seen()
    context = RunContext(world=World(rank=rank, world_size=world_size))
    loop = Loop(Points(batch_norm=True), experiment(epochs=2, seed=seed), {"first": First(), "seen": seen}, context)
    weights = numbers(loop.state.module)
    list(loop.run())
    return weights, loop.state.info["drawn"], seen.indices


def test_ranks_begin_alike_and_draw_by_seed_and_rank_from_then_on() -> None:
    ranks = on_ranks(_on_a_rank, 2, 5)
    torch.manual_seed(5)
    expected = numbers(Points(batch_norm=True).model())
    for rank, (weights, drawn, places) in enumerate(ranks):
        assert weights == expected
        assert drawn == torch.rand(3, generator=torch.Generator().manual_seed(5 + rank)).tolist()
        sampler: DistributedSampler[Any] = DistributedSampler(range(52), 2, rank, seed=5)  # type: ignore[arg-type]
        assert [place for batch in places[: len(places) // 2] for place in batch] == list(sampler)


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
def test_samples_draw_from_the_rank_s_numbers_or_in_a_process_from_the_batch_s(processes: int) -> None:
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


@dataclass
class Drawing(Points):
    """Draws in the loss, in every phase."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        self.progress.record(drawn=torch.rand(()))
        return super().loss(output, batch)


def test_nothing_else_draws_from_the_numbers_of_training(tmp_path: Path) -> None:
    settings = {"epochs": 3, "batch_size": 8, "optimizer": {"type": "SGD", "lr": 0.1}, "hooks": {"ema": {}}}
    rows = run(Experiment(task=Drawing(val=0), seed=2, **settings), tmp_path, local=True).stats
    generator = torch.Generator().manual_seed(2)
    assert rows["drawn"].tolist() == [torch.rand((), generator=generator).item() for _ in range(len(rows))]
