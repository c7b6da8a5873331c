import multiprocessing
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from torchmetrics.classification import MulticlassF1Score

from hooks import Interval
from orchestrator.errors import ConfigError
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from orchestrator.task import Task
from tests.iterable_tasks import Placed
from tests.tasks import Points, PointSet, experiment


@dataclass
class Broken(Points):
    """Gives data that cannot be used."""

    how: str = ""

    def data(self) -> Any:
        good = super().data()["train"]
        return {
            "no train": {"val": good},
            "other phase": {"train": good, "validation": good},
            "empty": {"train": TensorDataset(torch.zeros(0))},
            "nothing to validate": {
                "train": good,
                "val": good,
                "val/few": TensorDataset(torch.zeros(0)),
            },
            "a loader of nothing": {"train": good, "test": DataLoader(good, 999, drop_last=True)},
            "an empty iterable dataset": {"train": good, "val": Placed(PointSet(0, False, 0))},
        }[self.how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no train", r"Broken.data\(\) must return 'train', got val"),
        ("other phase", "phase 'validation'; phases are train, val, test, and val/NAME"),
        ("empty", r"the train data \(TensorDataset\) is empty: its length is 0$"),
        (
            "nothing to validate",
            r"the val/few data \(TensorDataset\) is empty: its length is 0; to evaluate nothing,",
        ),
        ("a loader of nothing", r"the test data \(DataLoader\) is empty"),
        ("an empty iterable dataset", r"the val data \(Placed\) is empty"),
    ],
)
def test_data_that_cannot_be_used_is_refused(how: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_data(Broken(how=how), experiment(), World())


def test_an_epoch_without_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"drop_last.*5 samples on 1 rank .*batch_size 8"):
        build_data(Points(train=5), experiment(loader={"drop_last": True}), World())

    class Own(Points):
        def loader(self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]) -> Any:
            return DataLoader(dataset, 999, drop_last=True)

    with pytest.raises(
        ConfigError,
        match=r"task: Own.loader\(\) gives no batch of the train data, of 52 samples on 1 rank",
    ):
        build_data(Own(), experiment(), World())


@dataclass
class Metered(Points):
    val_samples: int | None = None
    far: int = 9

    def data(self) -> Any:
        return {**super().data(), "test/far": PointSet(self.far, False, 3)}

    def sampler(self, dataset: Any, phase: str) -> Any:
        return (
            SequentialSampler(range(self.val_samples))
            if phase == "val" and self.val_samples
            else None
        )

    def meters(self) -> dict[str, Any]:
        return {"f1": MulticlassF1Score(3)}


@pytest.mark.parametrize(
    ("task", "every"),
    [(Metered(val=1), 1), (Metered(val=4, val_samples=1), 1), (Metered(far=1), 0)],
    ids=str,
)
def test_meters_with_a_rank_without_samples_are_refused(task: Task, every: int) -> None:
    of_two: Any = SimpleNamespace(
        rank=0, world_size=2, device=torch.device("cpu"), gather=lambda value: [value] * 2
    )
    with pytest.raises(
        ConfigError, match=r"need a (val|test/far) sample on each rank; there are 1 for 2 ranks"
    ):
        build_data(task, experiment(validate_every=Interval(every)), of_two)


def batches(loader: Any) -> list[list[int]]:
    return [batch[2].tolist() for batch in loader]


def test_drop_last_drops_only_a_training_batch() -> None:
    data = build_data(Points(train=20, val=20), experiment(loader={"drop_last": True}), World())
    assert [len(batch) for batch in batches(data.loaders["train"])] == [8, 8]
    assert [len(batch) for batch in batches(data.loaders["val"])] == [8, 8, 4]
    assert data.train.length() == 2


def test_fresh_batches_come_in_order_without_effect_on_training() -> None:
    data = build_data(Points(train=20, noisy=True), experiment(), World())
    iterator = data.train.begin(0, 0)
    seen = [next(iterator)[2].tolist()]
    random.seed(1)
    torch.manual_seed(1)
    fresh = list(data.fresh_batches("train"))
    drawn = (random.random(), torch.rand(()).item())
    random.seed(1)
    torch.manual_seed(1)
    assert drawn == (random.random(), torch.rand(()).item())
    assert [place for batch in fresh for place in batch[2].tolist()] == list(range(20))
    assert all(
        torch.equal(a[0], b[0]) for a, b in zip(fresh, data.fresh_batches("train"), strict=True)
    )
    seen += [batch[2].tolist() for batch in iterator]
    assert seen == batches(data.train.begin(0, 0))


def test_processes_of_loaders_end_with_the_run() -> None:
    before = set(multiprocessing.active_children())
    loop = Loop(Points(), experiment(epochs=1, loader={"num_workers": 1}), {})
    reports = loop.run()
    next(reports)
    assert len(set(multiprocessing.active_children()) - before) == 2
    assert list(reports) == []
    assert set(multiprocessing.active_children()) <= before


def test_processes_of_loaders_end_with_a_run_that_fails() -> None:
    before = set(multiprocessing.active_children())
    settings = experiment(epochs=1, loader={"num_workers": 1})
    with pytest.raises(ArithmeticError, match="on purpose") as caught:
        list(Loop(Points(fails=True), settings, {}).run())
    assert set(multiprocessing.active_children()) <= before
    assert caught.tb is not None, "the traceback refers to the loader's iterator"
