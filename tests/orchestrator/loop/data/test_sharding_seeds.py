from __future__ import annotations

import pickle
import random

import numpy as np
import torch

from orchestrator.loop.data.sharding import SeededBatches, ShardedSampler, sequential


def drawn(rank: int = 0, epoch: int = 0, offset: int = 0) -> list[tuple[list[int], float, float, float]]:
    """Each batch as it arrives in another process, and what is drawn there."""
    sampler = ShardedSampler(sequential(24), 24, rank, 2, even=True)
    sampler.begin(epoch, offset)
    sent = [pickle.dumps(batch) for batch in SeededBatches(sampler, 3, drop_last=False, seed=5)]
    return [(pickle.loads(one), random.random(), float(np.random.rand()), torch.rand(()).item()) for one in sent]


def test_each_batch_has_numbers_of_its_own_wherever_an_epoch_is_taken_up() -> None:
    whole = drawn()
    assert [batch for batch, *_ in whole] == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18, 20, 22]]
    assert all(type(batch) is list for batch, *_ in whole)
    assert drawn(offset=12) == whole[2:]
    others = [*whole, *drawn(rank=1), *drawn(epoch=1)]
    assert all(len({one[place] for one in others}) == 12 for place in (1, 2, 3))
