from __future__ import annotations

import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from orchestrator.loop.data.sharding import ShardedSampler, sequential, shuffled


def shard(
    length: int, rank: int, world_size: int, epoch: int = 0, offset: int = 0, shuffle: bool = True, even: bool = True
) -> list[int]:
    order = shuffled(length, seed=3) if shuffle else sequential(length)
    sampler = ShardedSampler(order, length, rank, world_size, even=even)
    sampler.set_epoch(epoch)
    sampler.offset = offset
    places = list(sampler)
    assert len(sampler) == len(places)
    return places


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 2, 20, 21, 23])
def test_even_shares_are_those_of_torchs_sampler(length: int, world_size: int, shuffle: bool) -> None:
    dataset = TensorDataset(torch.zeros(length))
    for rank in range(world_size):
        reference = DistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=3)
        for epoch in (0, 1, 5):
            reference.set_epoch(epoch)
            assert shard(length, rank, world_size, epoch, shuffle=shuffle) == list(reference)


@pytest.mark.parametrize("length", [1, 7, 20, 23])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_shares_that_need_not_be_even_hold_every_sample_once(length: int, world_size: int) -> None:
    shares = [shard(length, rank, world_size, even=False) for rank in range(world_size)]
    assert sorted(place for share in shares for place in share) == list(range(length))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def interleaved(length: int, world_size: int, offset: int = 0) -> list[int]:
    """The order in which all ranks together see the samples."""
    shares = [shard(length, rank, world_size, 2, offset) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    return [place for row in zip(*shares, strict=True) for place in row]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_resumed_at_an_offset_is_the_rest_of_the_whole(world_size: int) -> None:
    whole = interleaved(23, world_size)
    for consumed in range(0, len(whole), 2 * world_size):
        assert interleaved(23, world_size, consumed) == whole[consumed:]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (4, 3), (3, 4)])
def test_an_epoch_may_be_resumed_with_another_number_of_ranks(before: int, after: int) -> None:
    whole = interleaved(23, before)
    consumed = 3 * before
    rest = interleaved(23, after, consumed)
    assert (whole[:consumed] + rest)[:23] == whole[:23]
    assert set(whole[:consumed] + rest) == set(range(23))


def test_an_offset_behind_the_end_leaves_nothing() -> None:
    assert shard(5, 0, 2, offset=6) == []
    assert shard(5, 1, 2, offset=9) == []
