import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from orchestrator import Task, run
from orchestrator.errors import TaskError
from orchestrator.experiment.load import load_checked
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.world import World
from tests.tasks import Points, described


def linear() -> nn.Linear:
    return nn.Linear(2, 2)


class Block(nn.Module):
    """A block as transformers have it, with a sequence inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(linear(), nn.ReLU(), linear())


class Encoder(nn.Module):
    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = linear(), blocks, linear()


@pytest.mark.parametrize(
    ("model", "units"),
    [
        pytest.param(
            Encoder(nn.ModuleList([Block(), Block()])),
            ["blocks.0", "blocks.1"],
            id="the blocks of a ModuleList",
        ),
        pytest.param(
            Encoder(nn.Sequential(Block(), Block())),
            ["blocks.0", "blocks.1"],
            id="the blocks of a Sequential",
        ),
        pytest.param(
            nn.Sequential(nn.Sequential(linear(), nn.ReLU()), linear()),
            ["1", "0.0", "0.1"],
            id="a Sequential in another",
        ),
        pytest.param(
            Encoder(nn.ModuleList([nn.ModuleList([linear()]), linear()])),
            ["blocks.1", "blocks.0.0"],
            id="lists in lists",
        ),
        pytest.param(linear(), [], id="nothing but the model"),
    ],
)
def test_the_units_of_fsdp_are_the_members_of_lists_or_of_outer_sequences(
    model: nn.Module, units: list[str]
) -> None:
    names = {module: name for name, module in model.named_modules()}
    assert sorted(names[unit] for unit in Points().fsdp_units(model)) == sorted(units)


def test_batch_size_of_a_single_tensor_must_be_defined() -> None:
    samples = torch.zeros(8, 2)
    assert (
        Task.batch_size(Points(), (samples, samples))
        == Task.batch_size(Points(), {"points": samples})
        == 8
    )
    with pytest.raises(TaskError, match=r"single tensor; let data\(\) return tuples"):
        Task.batch_size(Points(), samples)


# The seed in data()


class Endless(IterableDataset[Any]):
    """Samples without an end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.ones(5), 0, 0


CALLS: list[tuple[Any, ...]] = []
"""What each call of data() drew."""


@dataclass
class Drawing(Points):
    """Draws from every generator in data()."""

    stream: bool = False

    def data(self) -> Mapping[str, Any]:
        CALLS.append(
            (torch.initial_seed(), torch.rand(()).item(), numpy.random.rand(), random.random())
        )
        return {**super().data(), **({"train": Endless()} if self.stream else {})}


def test_generators_are_seeded_for_each_call_of_data(tmp_path: Path) -> None:
    CALLS.clear()
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)
    expected = (7, torch.rand(()).item(), numpy.random.rand(), random.random())
    (tmp_path / "drawing.yaml").write_text(
        f"name: drawing\ntask: {__name__}:Drawing\nepochs: 1\nseed: 7\nhooks: {{console: null}}\n"
    )
    torch.manual_seed(0)
    experiment = load_checked(tmp_path / "drawing.yaml")
    done = run(experiment, tmp_path, local=True)
    done.samples()
    done.evaluate("last", local=True)
    run(done.continue_from("last", ["epochs=2"]), tmp_path, "longer", local=True)
    assert [expected] * 5 == CALLS


def test_generators_are_seeded_when_a_hook_reads_a_stream_again() -> None:
    CALLS.clear()
    experiment = described(
        task=f"{__name__}:Drawing", task_args={"stream": True}, epoch_steps=2, seed=7
    )
    task = Drawing(stream=True)
    data = build_data(task, experiment, World())
    before = torch.get_rng_state()
    next(data.fresh_batches("train"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert CALLS[1][:2] == (7, torch.rand(()).item())
    data.close()
