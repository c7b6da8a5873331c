from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from orchestrator.engines.error_origin import is_user_error
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import RunError
from orchestrator.loop.data.batch_loading import is_of_samples, iterate_batches


@pytest.fixture(autouse=True)
def processes_of_loaders_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch lets each take 5 s, and copies of a process that holds much need them."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


class SquaresAtOnce(Squares):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index * index for index in indices]


class Counting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Reversing(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([*super().__iter__()][::-1])


LOADERS = {
    "map-style": lambda: DataLoader(Squares(), 4),
    "shuffled": lambda: DataLoader(
        Squares(), 4, sampler=RandomSampler(Squares(), generator=torch.Generator().manual_seed(1))
    ),
    "all at once": lambda: DataLoader(SquaresAtOnce(), 3, drop_last=True),
    "collated": lambda: DataLoader(Squares(), 4, collate_fn=sum),
    "unbatched": lambda: DataLoader(Squares(), batch_size=None),
    "iterable": lambda: DataLoader(Counting(), 4),
    "its own iterator": lambda: Reversing(Squares(), 4),
    "no DataLoader": lambda: [torch.ones(2), torch.zeros(2)],
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_equal_those_of_the_loader(name: str) -> None:
    ours = list(iterate_batches(LOADERS[name](), "train"))
    reference = list(LOADERS[name]())
    assert len(ours) == len(reference) > 1
    for batch, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(batch, expected, rtol=0, atol=0)


# What cannot be had


class Broken(Dataset[Any]):
    """Sample 5 lies in a file that is not there; sample 7 is longer than the others."""

    def __init__(self, *broken: int) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor]:
        if index == 5 and 5 in self.broken:
            Path("/nowhere/5.png").read_bytes()
        return (torch.zeros(3 if index == 7 and 7 in self.broken else 2),)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("processes", [0, 2])
def test_sample_that_cannot_be_fetched_is_named(processes: int, pin_memory: bool) -> None:
    loader = DataLoader(Broken(5), 2, num_workers=processes, pin_memory=pin_memory)
    batches = iterate_batches(loader, "val")
    assert len(next(batches)[0]) == len(next(batches)[0]) == 2
    with pytest.raises(
        RunError,
        match=r"sample 5 of the val data cannot be fetched: FileNotFoundError: .*/nowhere/5.png",
    ) as caught:
        next(batches)
    assert is_user_error(caught.value)
    assert f"{__file__}:" in RankFailed.from_error(0, 4, caught.value).message


@pytest.mark.parametrize("processes", [0, 2])
def test_samples_that_cannot_be_collated_are_named_with_their_shapes(processes: int) -> None:
    batches = iterate_batches(DataLoader(Broken(7), 4, num_workers=processes), "train")
    next(batches)
    with pytest.raises(
        RunError,
        match=r"sample 4 \(shape \(2,\)\) and sample 7 \(shape \(3,\)\) of the train data cannot be collated",
    ):
        next(batches)


class Shuffling(Sampler[int]):
    """Draws sample 5 first, and another sample when it is asked again."""

    def __init__(self) -> None:
        self.next = 5

    def __iter__(self) -> Any:
        self.next += 1
        return iter([self.next - 1])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize(("processes", "pin_memory"), [(0, True), (1, False), (1, True)])
def test_no_other_sample_is_named_if_a_sampler_shuffles(processes: int, pin_memory: bool) -> None:
    loader = DataLoader(
        Broken(5), 1, sampler=Shuffling(), num_workers=processes, pin_memory=pin_memory
    )
    with pytest.raises(FileNotFoundError, match=r"nowhere/5\.png"):
        next(iterate_batches(loader, "val"))


class BrokenOnce(Broken):
    """Sample 5 cannot be read at first."""

    has_failed = False

    def __getitem__(self, index: int) -> tuple[Tensor]:
        if index == 5 and not self.has_failed:
            self.has_failed = True
            Path("/nowhere/5.png").read_bytes()
        return super().__getitem__(index)


def test_samples_that_load_again_are_not_blamed() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/5\.png"):
        next(iterate_batches(DataLoader(BrokenOnce(), 10), "val"))


class Unreadable(Exception):
    def __str__(self) -> str:
        return "the archive is cut short"


class Archive(Broken):
    def __getitem__(self, index: int) -> tuple[Tensor]:
        raise Unreadable


def test_error_of_a_loader_process_with_a_text_of_its_own_names_the_sample() -> None:
    with pytest.raises(
        RunError, match="sample 0 of the val data cannot be fetched: Unreadable: the archive is cut"
    ):
        next(iterate_batches(DataLoader(Archive(), 2, num_workers=1), "val"))


def test_killed_process_of_a_loader_is_not_a_mistake() -> None:
    class Killed(Broken):
        def __getitem__(self, index: int) -> tuple[Tensor]:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
            return (torch.zeros(2),)

    with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        next(iterate_batches(DataLoader(Killed(), 4, num_workers=1), "train"))
    assert not is_user_error(caught.value)


class Unpinnable(dict[str, Tensor]):
    def pin_memory(self) -> None:
        raise RuntimeError("no memory can be pinned")


def test_an_error_of_pinning_is_not_of_the_samples() -> None:
    with pytest.raises(RuntimeError) as caught:
        Unpinnable().pin_memory()
    assert not is_of_samples(caught.value, has_processes=False)
    with pytest.raises(FileNotFoundError) as of_sample:
        Broken(5)[5]
    assert is_of_samples(of_sample.value, has_processes=False)
