import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

from hooks import State
from tests.ranks import on_ranks

ORDERS = (1.0, 2.0, 3.0)


def _measure_norms(rank: int, world_size: int) -> list[tuple[float, float]]:
    """Return the norm of sharded gradients as the state measures it, and as torch does."""
    torch.manual_seed(0)
    # Of the last bias, only the first rank has a part. The first layer is frozen.
    module = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 1))
    module[0].requires_grad_(False)
    for part in (*module, module):
        fully_shard(part)
    module(torch.randn(4, 7) + rank).square().mean().backward()

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD([{"params": trained[2:]}, {"params": trained[:2]}], lr=0.1)
    state = State(module=module, optimizer=optimizer)
    pairs = []
    for order in ORDERS:
        expected: Any = clip_grad_norm_(module.parameters(), 1e9, order)
        pairs.append((state.gradient_norm(order).item(), expected.full_tensor().item()))
    # Torch cannot reduce an empty part to its largest element.
    gradients: list[Any] = [parameter.grad for parameter in trained]
    largest = max(gradient.full_tensor().abs().max().item() for gradient in gradients)
    return [*pairs, (state.gradient_norm(math.inf).item(), largest)]


def test_norm_of_shards_is_that_of_torch_bit_for_bit() -> None:
    for pairs in on_ranks(_measure_norms):
        assert [own for own, _ in pairs] == [expected for _, expected in pairs]


def _measure_largest(rank: int, world_size: int, place: int, value: float) -> float:
    """Return the largest gradient if one rank's shard has another value at a place."""
    module = fully_shard(nn.Linear(2, 4))
    module(torch.ones(1, 2)).sum().backward()
    gradient: Any = module.weight.grad
    if rank == place:
        gradient.to_local()[0, 0] = value
    return State(module=module).gradient_norm(math.inf).item()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -9.0])
def test_largest_gradient_is_nan_or_infinite_on_all_ranks(place: int, value: float) -> None:
    """The maximum of gloo keeps the NaN of rank 0 only."""
    expected = abs(value)
    found = on_ranks(_measure_largest, 2, place, value)
    assert found == pytest.approx([expected, expected], nan_ok=True)
