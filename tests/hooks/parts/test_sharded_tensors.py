import math

import torch
from torch.nn.utils import get_total_norm

from hooks.parts.sharded_tensors import norm_of_parts
from tests.ranks import on_ranks

VECTOR = torch.tensor([0.5, -7.0, 3.0, 0.0, 2.0])
ORDERS = (1.0, 2.0, 3.0, math.inf)


def _norms(rank: int, world_size: int) -> list[float]:
    shard = (VECTOR[:3], VECTOR[3:])[rank]
    return [norm_of_parts(torch.linalg.vector_norm(shard, order), order).item() for order in ORDERS]


def test_norm_of_shards_is_that_of_the_whole_vector() -> None:
    expected = [get_total_norm([VECTOR], order).item() for order in ORDERS]
    for norms in on_ranks(_norms):
        torch.testing.assert_close(norms, expected)
