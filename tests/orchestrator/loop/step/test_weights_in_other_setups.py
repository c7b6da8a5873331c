"""Weights of losses with iterable datasets, sharded models, fp16, and hooks that read the loss."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from hooks import Hook, State
from hooks.training.loss_spike import LossSpike
from hooks.training.nan_guard import NanGuard
from orchestrator import Task
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Rows, experiment

PLAIN = Component(type="SGD", lr=0.5)


class Texts(torch.utils.data.Dataset[Any]):
    """Six tokens a text, of which a mask says what counts; the counts differ, and the third text
    has none."""

    def __init__(self, size: int = 8) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randn(size, 6, 3, generator=generator)
        self.targets = torch.randn(size, 6, generator=generator)
        counts = [6, 1, 0, 3, 2, 5, 1, 4]
        self.mask = torch.tensor(
            [[float(place < counts[row % 8]) for place in range(6)] for row in range(size)]
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.tokens[index], self.targets[index], self.mask[index]


class Endless(IterableDataset[Any]):
    """The same texts as an iterable dataset."""

    shards_itself = True

    def __init__(self, size: int) -> None:
        self.texts = Texts(size)

    def __iter__(self) -> Iterator[Any]:
        return (self.texts[index] for index in range(len(self.texts)))


def masked_mean(output: Tensor, batch: Any) -> Tensor:
    """A mean by hand, which is NaN over nothing, and so is its gradient."""
    _, targets, mask = batch
    return ((output - targets).square() * mask).sum() / mask.sum()


@dataclass
class Tokens(Task):
    """A loss that is a mean over tokens."""

    size: int = 8
    iterable: bool = False
    terms: bool = False

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def data(self) -> Any:
        return {"train": Endless(self.size) if self.iterable else Texts(self.size), "val": Texts()}

    def sampler(self, dataset: Any, phase: str) -> Any:
        return None if self.iterable else torch.utils.data.SequentialSampler(dataset)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).squeeze(2)  # type: ignore[no-any-return]

    def loss(self, output: Tensor, batch: Any) -> Any:
        loss = masked_mean(output, batch)
        return {"near": loss * 0.25, "far": loss * 0.75} if self.terms else loss

    def weight(self, batch: Any) -> Tensor:
        return batch[2].sum()  # type: ignore[no-any-return]


class Gradients(Hook):
    """The gradients of each step."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []

    def on_gradients(self, state: State) -> None:
        self.steps.append(
            torch.cat([gradient.flatten() for gradient in state.gradients()]).tolist()
        )


def trained(
    task: Tokens, world: World | None = None, hooks: Any = None, **fields: Any
) -> tuple[Any, ...]:
    """Return the gradients of each step, the rows, the reports and the state."""
    seen = Gradients()
    rows = Rows()
    fields = {"epochs": 2, "optimizer": PLAIN, **fields}
    context = RunContext(world=world or World(), recorder=rows)
    loop = Loop(task, experiment(**fields), {"seen": seen, **(hooks or {})}, context)
    reports = [report.metrics for report in loop.run()]
    return seen.steps, rows, reports, loop


def large_batches(*steps: tuple[int, int], epochs: int = 2, size: int = 8) -> list[list[float]]:
    """Return the gradients of a plain loop over large batches, from one row to another."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    gradients = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    texts = Texts(size)
    for first, end in steps * epochs:
        batch = texts.tokens[first:end], texts.targets[first:end], texts.mask[first:end]
        optimizer.zero_grad()
        masked_mean(model(batch[0]).squeeze(2), batch).backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).tolist()
        )
        optimizer.step()
    return gradients


def close(values: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.tensor(values), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_hooks_see_means_and_no_nan() -> None:
    """With a guard against NaN, and one against spikes whose losses are those of the steps."""
    spike = LossSpike()
    hooks = {"guard": NanGuard(), "spike": spike}
    trained(
        Tokens(),
        hooks=hooks,
        batch_size=1,
        accumulate=4,
        epochs=1,
        optimizer=Component(type="SGD", lr=1e-30),
    )
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    texts = Texts()
    output = model(texts.tokens).squeeze(2)
    halves = [slice(0, 4), slice(4, 8)]
    expected = [
        masked_mean(output[half], (None, texts.targets[half], texts.mask[half])).item()
        for half in halves
    ]
    assert spike.state_dict()["losses"] == pytest.approx(expected, rel=1e-6)


def test_fp16_scales_gradients_of_a_mean() -> None:
    """A scale that a mean over tokens bears would be too large for their sum."""
    scaler = {"init_scale": 1024.0}
    steps, _, _, loop = trained(
        Tokens(), batch_size=1, accumulate=4, precision="fp16", scaler=scaler
    )
    torch.testing.assert_close(
        torch.tensor(steps), torch.tensor(large_batches((0, 4), (4, 8))), rtol=2e-2, atol=2e-2
    )
    assert loop.state.scaler.get_scale() == 1024


@pytest.mark.parametrize("on_exhausted", ["restart", "stop"])
def test_stream_trains_like_large_batches(on_exhausted: str) -> None:
    task = Tokens(iterable=True)
    loader = {"on_exhausted": on_exhausted}
    steps = trained(task, batch_size=1, accumulate=4, steps=2, epochs=None, loader=loader)[0]
    close(steps, large_batches((0, 4), (4, 8), epochs=1))


def test_stream_that_ends_within_a_step_trains_the_whole_steps() -> None:
    task = Tokens(iterable=True, size=7)
    loader = {"on_exhausted": "stop"}
    fields: Any = {
        "batch_size": 1,
        "accumulate": 3,
        "steps": 9,
        "epochs": None,
        "epoch_steps": 5,
        "loader": loader,
    }
    close(trained(task, **fields)[0], large_batches((0, 3), (3, 6), epochs=1, size=7))


def _train_sharded(rank: int, world_size: int) -> Any:
    """Train a model of which each rank has a part."""
    world = World(rank=rank, world_size=world_size)
    fsdp = Workers(strategy="fsdp")
    _, _, reports, loop = trained(Tokens(), world, batch_size=1, accumulate=2, workers=fsdp)
    weights = loop.state.module.weight.full_tensor()
    return [report["train/loss"] for report in reports], weights.flatten().tolist()


def test_sharded_model_trains_like_one_large_batch() -> None:
    """The first rank has a batch without a token."""
    one, other = on_ranks(_train_sharded)
    assert one == other
    _, _, reports, loop = trained(Tokens(), batch_size=4)
    assert one[0] == pytest.approx([report["train/loss"] for report in reports], rel=1e-5)
    close(one[1], loop.state.module.weight.flatten().tolist())
