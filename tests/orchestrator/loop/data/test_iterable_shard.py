import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from orchestrator.errors import CheckpointError
from orchestrator.loop.data.iterable_shard import IterableShard
from tests.iterable_tasks import Placed, Shuffled
from tests.tasks import PointSet

POINTS = PointSet(23, noisy=False, seed=0)


@pytest.mark.parametrize("kind", [Shuffled, Placed])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_goes_to_one_process_of_one_rank(kind: Any, workers: int) -> None:
    shares = [IterableShard(kind(POINTS), rank, 3, seed=5) for rank in range(3)]
    found = []
    for rank, share in enumerate(shares):
        torch.manual_seed(rank)
        random.seed(rank)
        loader: Any = StatefulDataLoader(share, batch_size=None, num_workers=workers)
        found.append([int(sample[2]) for sample in loader])
    assert sorted(place for one in found for place in one) == list(range(23))
    assert {len(one) for one in found} == {7, 8}
    assert found[0] != sorted(found[0])


class Counted(Placed):
    """Keeps its place itself, as datasets of Hugging Face do, and not its iterator."""

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(Placed.__iter__(self))
        self.iterator.place = getattr(self, "begin", 0)
        yield from self.iterator

    def state_dict(self) -> dict[str, int]:
        return {"begin": self.iterator.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["begin"]


@pytest.mark.parametrize(("kind", "reads"), [(Placed, 23 - 10), (Counted, 23 - 10), (Shuffled, 0)])
@pytest.mark.parametrize("rank", [0, 1])
def test_share_resumes_and_reads_again_only_without_a_state(
    kind: Any, reads: int, rank: int
) -> None:
    iterator = iter(IterableShard(kind(POINTS), rank, 2, seed=5))
    before = [next(iterator)[2] for _ in range(5)]
    state = iterator.state_dict()  # type: ignore[attr-defined]
    assert state["read"] == 9 + rank
    rest = [sample[2] for sample in iterator]
    again = kind(POINTS)
    other = iter(IterableShard(again, rank, 2, seed=5))
    other.load_state_dict(state)  # type: ignore[attr-defined]
    assert [sample[2] for sample in other] == rest
    assert not set(before) & set(rest)
    assert len(getattr(again, "read", [])) == (reads + 1 - rank if reads else 0)
    other._share.passes = 1  # type: ignore[attr-defined]
    assert len(list(other._share)) == 12 - rank  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("length", [0, 5])
def test_position_after_the_end_of_shorter_data_is_refused(workers: int, length: int) -> None:
    """A StopIteration would end the loop that resumes, or become a RuntimeError in a generator."""
    loader: Any = StatefulDataLoader(
        IterableShard(Shuffled(POINTS), 0, 1, seed=5), batch_size=None, num_workers=workers
    )
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    shorter: Any = StatefulDataLoader(
        IterableShard(Shuffled(PointSet(length, noisy=False, seed=0)), 0, 1, seed=5),
        batch_size=None,
        num_workers=workers,
    )
    shorter.load_state_dict(loader.state_dict())
    said = f"the train dataset ends after {length} samples, but the checkpoint was saved after 8;"
    with pytest.raises(CheckpointError, match=said):
        iter(shorter)


class Itself(IterableDataset[Any]):
    """Takes every so many-th by itself."""

    shards_itself = True

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(info.id if info else 0, 10, info.num_workers if info else 1))


def test_dataset_that_shards_itself_is_unchanged() -> None:
    loader: Any = StatefulDataLoader(
        IterableShard(Itself(), 1, 2, seed=5), batch_size=None, num_workers=2
    )
    assert sorted(loader) == list(range(10))


@pytest.mark.parametrize("has_buffer", [False, True])
def test_hugging_face_stream_is_split_and_resumed_sample_by_sample(has_buffer: bool) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"x": list(range(200))}).to_iterable_dataset(num_shards=4)
    if has_buffer:
        dataset = dataset.shuffle(seed=3, buffer_size=30).map(lambda row: row)
    found: list[list[int]] = [
        [
            int(sample["x"])
            for sample in StatefulDataLoader(
                IterableShard(dataset, rank, 2, seed=5), batch_size=None, num_workers=2
            )
        ]
        for rank in range(2)
    ]
    assert sorted(found[0] + found[1]) == list(range(200))
    iterator: Any = iter(IterableShard(dataset, 0, 2, seed=5))
    before = [next(iterator)["x"] for _ in range(37)]
    state = iterator.state_dict()
    rest = [sample["x"] for sample in iterator]
    share = IterableShard(dataset, 0, 2, seed=5)
    other: Any = iter(share)
    other.load_state_dict(state)
    assert [sample["x"] for sample in other] == rest
    assert sorted(before + rest) == sorted(found[0])
    assert len(list(share)) == 100
