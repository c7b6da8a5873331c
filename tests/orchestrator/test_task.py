import pytest
import torch
from torch import nn

from orchestrator import Task
from orchestrator.errors import TaskError
from tests.tasks import Points


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
            Encoder(nn.ModuleList([Block(), Block()])), ["blocks.0", "blocks.1"], id="the blocks of a ModuleList"
        ),
        pytest.param(
            Encoder(nn.Sequential(Block(), Block())), ["blocks.0", "blocks.1"], id="the blocks of a Sequential"
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
def test_the_units_of_fsdp_are_the_members_of_lists_or_of_outer_sequences(model: nn.Module, units: list[str]) -> None:
    names = {module: name for name, module in model.named_modules()}
    assert sorted(names[unit] for unit in Points().fsdp_units(model)) == sorted(units)


def test_batch_size_of_a_single_tensor_must_be_defined() -> None:
    samples = torch.zeros(8, 2)
    assert Task.batch_size(Points(), (samples, samples)) == Task.batch_size(Points(), {"points": samples}) == 8
    with pytest.raises(TaskError, match=r"single tensor; let data\(\) return tuples"):
        Task.batch_size(Points(), samples)
