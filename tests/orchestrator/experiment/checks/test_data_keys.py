from typing import Any

import pytest

from hooks import Interval
from orchestrator.experiment.checks.data import check_data
from orchestrator.experiment.checks.data_keys import find_key_problems
from tests.tasks import Points, experiment

OF_RAY: Any = type("Dataset", (), {"__module__": "ray.data.dataset", "__iter__": iter})


@pytest.mark.parametrize(
    ("task", "fields", "path"),
    [
        (Points(), {"epoch_steps": 2}, "epoch_steps"),
        (Points(), {"loader": {"on_exhausted": "stop"}}, "loader.on_exhausted"),
        (Points(val=0), {"loader": {"eval_batch_size": 4}}, "loader.eval_batch_size"),
        (Points(val=0), {"validate_every": Interval(2)}, "validate_every"),
    ],
)
def test_validation_finds_keys_without_effect(
    task: Points, fields: dict[str, Any], path: str
) -> None:
    (problem,) = check_data(experiment(**fields), task)
    assert (problem.path, problem.message.partition(":")[0]) == (path, "has no effect")


@pytest.mark.parametrize(
    ("datasets", "paths"),
    [
        ({"train": OF_RAY()}, ["loader.num_workers", "loader.pin_memory"]),
        ({"train": OF_RAY(), "val": [1, 2]}, []),
    ],
)
def test_ray_data_needs_no_loader_processes(datasets: dict[str, Any], paths: list[str]) -> None:
    settings = experiment(loader={"num_workers": 2, "pin_memory": True})
    problems = find_key_problems(settings, Points(), datasets)
    assert [problem.path for problem in problems] == paths
