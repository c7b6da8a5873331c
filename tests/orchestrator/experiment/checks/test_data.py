from typing import Any

import pytest

from orchestrator.experiment.checks.data import check_data
from orchestrator.experiment.sections.workers import Workers
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
