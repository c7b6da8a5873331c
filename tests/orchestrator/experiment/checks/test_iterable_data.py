from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.data import check_data
from orchestrator.experiment.checks.iterable_data import check_dataset
from tests.iterable_tasks import Placed
from tests.tasks import Points, PointSet, experiment


class Asks(IterableDataset[Any]):
    """May shard itself, and does not say so."""

    def __iter__(self) -> Iterator[int]:
        def whose() -> int:
            return torch.distributed.get_rank() + bool(get_worker_info())

        return iter([bool(get_worker_info()) and whose()])


class Declares(Asks):
    shards_itself = True


def test_dataset_that_may_shard_itself_must_say_so() -> None:
    check_dataset(Declares(), "train", is_shared=True)
    check_dataset(Placed(PointSet(12, False, 3)), "train", is_shared=True)
    check_dataset(Asks(), "train", is_shared=False)
    with pytest.raises(
        ConfigError,
        match=r"the train dataset \(Asks\) calls get_rank and get_worker_info in __iter__.*set shards_itself = True",
    ):
        check_dataset(Asks(), "train", is_shared=True)


@dataclass
class Asking(Points):
    def data(self) -> Any:
        return {"train": Asks()}


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [({}, False), ({"loader": {"num_workers": 2}}, True), ({"workers": {"count": 2}}, True)],
)
def test_validation_refuses_undeclared_sharding_among_processes(
    fields: dict[str, Any], is_refused: bool
) -> None:
    problems = list(check_data(experiment(steps=2, **fields), Asking()))
    assert ["may shard itself" in problem.message for problem in problems] == [True] * is_refused
