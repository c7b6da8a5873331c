"""Ray Data without Ray: what is asked of it, and which part each rank gets."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch

from orchestrator.engines.ray_data import data_of
from orchestrator.errors import ConfigError
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from tests.tasks import Points, PointSet, experiment


@dataclass
class Rows:
    """A Ray dataset, as far as ranks ask for it."""

    count_of: int = 20
    places: list[int] = field(default_factory=list)
    context: Any = field(
        default_factory=lambda: SimpleNamespace(execution_options=SimpleNamespace())
    )
    counted: int = 0

    def count(self) -> int:
        self.counted += 1
        return self.count_of

    def iterator(self) -> "Part":
        return Part(list(range(self.count_of)))

    def streaming_split(self, ranks: int, *, equal: bool) -> "list[Part]":
        rows = self.count_of // ranks * ranks if equal else self.count_of
        return [Part(list(range(rank, rows, ranks))) for rank in range(ranks)]


@dataclass
class Part:
    places: list[int]

    def iter_torch_batches(self, batch_size: int, drop_last: bool, device: str) -> Iterator[Any]:
        points = PointSet(30, False, 0)
        for begin in range(0, len(self.places), batch_size):
            places = self.places[begin : begin + batch_size]
            if len(places) == batch_size or not drop_last:
                yield points.points[places], points.labels[places], torch.tensor(places)


@dataclass
class OfRay(Points):
    train_rows: int = 21

    def data(self) -> Any:
        return {"train": Rows(self.train_rows), "val": Rows(11)}


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = SimpleNamespace(
        Dataset=Rows,
        ExecutionResources=lambda **amounts: amounts,
        DataContext=SimpleNamespace(get_current=SimpleNamespace),
    )
    whole: Any = SimpleNamespace(
        data=module,
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": 2.0},
        cloudpickle=cloudpickle,
    )
    monkeypatch.setitem(sys.modules, "ray.data", module)
    monkeypatch.setitem(sys.modules, "ray", whole)
    return whole


Rows.__module__ = "ray.data.dataset"  # by which a class is known without importing Ray


def of(rank: int, ranks: int) -> Any:
    """A rank whose others do as it does."""
    return SimpleNamespace(
        rank=rank,
        world_size=ranks,
        device=torch.device("cpu"),
        broadcast=lambda make: make(),
        gather=lambda value: [value] * ranks,
    )


def places(batches: Any) -> list[int]:
    return [place for batch in batches for place in batch[2].tolist()]


def test_ranks_train_on_equal_shares_and_evaluate_every_row() -> None:
    halves = experiment(epochs=1, workers={"count": 2, "cpus": 0.5}, loader={"eval_batch_size": 3})
    parts = [data_of(OfRay(), halves, of(rank, 2)) for rank in range(2)]
    assert [len(part["train"]) for part in parts] == [2, 2]
    assert sorted(places(parts[0]["train"]) + places(parts[1]["train"])) == list(range(20))
    assert sorted(places(parts[0]["val"]) + places(parts[1]["val"])) == list(range(11))
    assert [len(batch[2]) for batch in parts[0]["val"]] == [3, 3]
    whole = data_of(OfRay(), experiment(epochs=1), World())
    assert places(whole["train"]) == list(range(21))


@pytest.mark.parametrize(
    ("of_train", "taken_off"), [(False, {"exclude_resources": {"cpu": 1.0, "gpu": 0}}), (True, {})]
)
def test_resources_of_ranks_are_excluded_once(
    monkeypatch: pytest.MonkeyPatch, of_train: bool, taken_off: dict[str, Any]
) -> None:
    """Ray Train tells Ray Data of its workers by itself."""
    rows = Rows()
    monkeypatch.setattr(OfRay, "data", lambda self: {"train": rows})
    data_of(
        OfRay(),
        experiment(epochs=1, workers={"count": 2, "cpus": 0.5}),
        of(0, 2),
        of_train=of_train,
    )
    assert vars(rows.context.execution_options) == taken_off


def test_rows_are_counted_only_if_an_epoch_is_a_pass() -> None:
    for fields, length in (
        ({"epochs": 2}, 3),
        ({"epochs": 2, "epoch_steps": 4}, 4),
        ({"steps": 9}, 9),
    ):
        assert build_data(OfRay(), experiment(**fields), World(), data_of).train.length() == length
    for fields in ({"epochs": 2, "epoch_steps": 4}, {"steps": 9}):
        with pytest.raises(TypeError, match="number of rows is unknown"):
            len(data_of(OfRay(), experiment(**fields), World())["train"])


def test_resumed_epoch_begins_with_the_first_rows() -> None:
    loop = Loop(OfRay(), experiment(epochs=2), {}, make_data=partial(build_data, data_of=data_of))
    reports = [report.metrics for report in loop.run()]
    assert [(report["step"], report["samples"], "val/loss" in report) for report in reports] == [
        (3, 21, True),
        (6, 42, True),
    ]
    data = build_data(OfRay(), experiment(epochs=2), World(), data_of)
    data.train.restore(
        {"epoch": 1, "number": 1, "loader_workers": 0, "loader": None, "is_exhausted": False}, 1
    )
    assert places([next(data.train.begin(1, 0))]) == list(range(8))
    assert places(data.fresh_batches("train")) == list(range(21))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loader": {"num_workers": 2}}, "loader.num_workers: has no effect with Ray Data"),
        (
            {"workers": {"count": 2}},
            "workers.cpus: 1 for each of 2 ranks takes 2 of 2 CPUs.*set at most 0.5",
        ),
    ],
)
def test_settings_without_effect_or_free_cpus_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    world = of(0, 2) if "workers" in fields else World()
    with pytest.raises(ConfigError, match=message):
        data_of(OfRay(), experiment(epochs=1, **fields), world)


def test_other_data_is_unchanged() -> None:
    assert [type(one) for one in data_of(Points(), experiment(), World()).values()] == [
        PointSet,
        PointSet,
    ]
