from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hooks import Interval
from orchestrator.experiment.checks.data import check_data
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.task import Task
from tests.iterable_tasks import IterablePoints
from tests.tasks import Points, experiment


class Sampled(Points):
    def sampler(self, dataset: Any, phase: str) -> Any:
        return None


@pytest.mark.parametrize(
    ("task", "ranks", "fields", "messages"),
    [
        (Points(train=8), 1, {"drop_last": True}, []),
        (Points(train=15), 2, {"drop_last": True}, []),
        (Points(train=7), 1, {}, []),
        (Sampled(train=7), 1, {"drop_last": True}, []),
        (
            Points(train=7),
            1,
            {"drop_last": True},
            ["7 samples on 1 rank do not fill one of batch_size 8"],
        ),
        (
            Points(train=14),
            2,
            {"drop_last": True},
            ["14 samples on 2 ranks do not fill one of batch_size 8"],
        ),
    ],
)
def test_training_data_that_fill_no_batch_are_refused(
    task: Points, ranks: int, fields: dict[str, Any], messages: list[str]
) -> None:
    settings = experiment(loader=fields, workers=Workers(count=ranks))
    problems = [
        problem for problem in check_data(settings, task) if problem.path == "loader.drop_last"
    ]
    assert [problem.message.partition(": ")[2] for problem in problems] == messages


@dataclass
class Metered(Points):
    def meters(self) -> Any:
        return {"f1": object()}


@pytest.mark.parametrize(
    ("task", "ranks", "every", "messages"),
    [
        (Metered(val=2), 2, 1, []),
        (
            Metered(val=2),
            3,
            1,
            ["has meters, which need a val sample on each rank; there are 2 for 3 ranks"],
        ),
        (Metered(val=2), 3, 0, []),
        (Points(val=2), 3, 1, []),
    ],
)
def test_meters_with_a_rank_without_samples_are_refused(
    task: Points, ranks: int, every: int, messages: list[str]
) -> None:
    settings = experiment(validate_every=Interval(every), workers=Workers(count=ranks))
    assert [problem.message for problem in check_data(settings, task)] == messages


@dataclass
class Alternating(Task):
    """Has turns, and no loss."""

    val: int = 4

    def model(self) -> Any:
        return Points().model()

    def data(self) -> Any:
        return Points(val=self.val).data()

    def turns(self, model: Any, batch: Any) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    ("val", "every", "messages"),
    [
        (4, 1, ["Alternating needs loss(), to evaluate val"]),
        (4, 0, []),
        (0, 1, []),
    ],
)
def test_data_to_evaluate_need_a_loss(val: int, every: int, messages: list[str]) -> None:
    settings = experiment(validate_every=Interval(every))
    problems = check_data(settings, Alternating(val))
    assert [problem.message for problem in problems] == messages


@pytest.mark.parametrize(
    ("space", "paths"),
    [
        ({"optimizer.lr": {"choice": [0.1, 0.2]}}, ["epochs"]),
        ({"epoch_steps": {"choice": [2, 3]}}, []),
        ({"task_args.kind": {"choice": ["placed", "shuffled"]}}, []),
    ],
)
def test_settings_that_a_sweep_changes_are_left_to_its_trials(
    space: dict[str, Any], paths: list[str]
) -> None:
    settings = make_experiment(
        {
            "name": "points",
            "task": "tests.iterable_tasks:IterablePoints",
            "epochs": 2,
            "hooks": {"checkpoint": None},
            "sweep": {"metric": "val/loss", "mode": "min", "space": space},
        }
    )
    assert [problem.path for problem in check_data(settings, IterablePoints())] == paths
