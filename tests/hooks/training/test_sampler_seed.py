import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, TensorDataset

from hooks import State
from hooks.training.sampler_seed import DistSamplerSeed

DATA = TensorDataset(torch.arange(20))


class Listener:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def order_of(loader: Any) -> list[int]:
    batches = [batch for (batch,) in loader]
    return list(map(int, torch.cat(batches)))


def start_phase(
    hook: DistSamplerSeed, loader: Any, epoch: int, phase: str = "train", world_size: int = 2
) -> None:
    hook.on_phase_start(
        State(phase=phase, epoch=epoch, world_size=world_size, loaders={"train": loader})
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_each_epoch_has_the_order_of_torchs_own_sampler(wrapped: bool) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=1)
    loader: DataLoader[Any] = DataLoader(DATA, 4, sampler=sampler)
    if wrapped:
        loader = DataLoader(DATA, batch_sampler=BatchSampler(sampler, 4, False))
    hook = DistSamplerSeed()
    reference: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=1)
    for epoch in (0, 1, 5):
        start_phase(hook, loader, epoch)
        reference.set_epoch(epoch)
        assert order_of(loader) == list(reference)


def test_set_epoch_is_called_once_on_every_part_that_has_it() -> None:
    sampler = Listener()
    batch_sampler = Listener()
    inner = Listener()
    batch_sampler.sampler = inner
    loader = Listener()
    dataset = Listener()
    vars(loader).update(sampler=sampler, batch_sampler=batch_sampler, dataset=dataset)
    start_phase(DistSamplerSeed(), loader, 3)
    assert [one.epochs for one in (sampler, batch_sampler, inner, dataset, loader)] == [[3]] * 5
    same = Listener()
    start_phase(
        DistSamplerSeed(),
        SimpleNamespace(sampler=same, batch_sampler=SimpleNamespace(sampler=same)),
        3,
    )
    assert same.epochs == [3]


class OwnLoader:
    """A loader that is not torch's, with a name of its own for its batches."""

    def __init__(self, lists: BatchSampler) -> None:
        self._lists = lists

    def __iter__(self) -> Any:
        for indices in self._lists:
            yield DATA[indices]


def test_batches_of_another_loader_are_shuffled_under_any_name() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=1)
    loader = OwnLoader(BatchSampler(sampler, 4, drop_last=False))
    reference: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=1)
    for epoch in (0, 1, 5):
        start_phase(DistSamplerSeed(), loader, epoch)
        reference.set_epoch(epoch)
        assert order_of(loader) == list(reference)


@pytest.mark.parametrize(("world_size", "warnings"), [(1, 0), (2, 1)])
def test_warns_once_if_several_ranks_have_no_set_epoch(
    world_size: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    data: Dataset[Any] = DATA
    hook = DistSamplerSeed()
    loader = DataLoader(data, 4)
    with caplog.at_level(logging.WARNING, "hookyard"):
        for epoch in range(3):
            start_phase(hook, loader, epoch, world_size=world_size)
    assert len(caplog.records) == warnings
    assert all(
        "the training loader (DataLoader) has no set_epoch" in record.message
        for record in caplog.records
    )
