"""Trials that fit on a cluster at a time."""

from typing import Any

import pytest

from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.sweep.concurrent_trials import count_concurrent_trials
from tests.orchestrator.experiment.sweep.spaces import of


@pytest.mark.parametrize(
    ("cap", "workers", "nodes", "rooms"),
    [
        (None, {"count": 2}, [{"CPU": 7.0}], 3),
        (None, {"count": 1, "gpu": True}, [{"CPU": 16.0, "GPU": 2.0}], 2),
        (2, {"count": 1}, [{"CPU": 16.0}], 2),
        (3, {"count": 2, "cpus": 0.5}, [{"CPU": 2.0}], 2),
        (None, {"count": 1, "gpu": True}, [{"CPU": 16.0}], 0),
        # 0.6 / 0.2 is less than 3 in floating point.
        (None, {"count": 3, "cpus": 0.2}, [{"CPU": 0.6}], 1),
        # A rank needs its place on one node: of 3 CPUs each, a third rank of 2 finds none though 2
        # CPUs are left.
        (None, {"count": 1, "cpus": 2}, [{"CPU": 3.0}, {"CPU": 3.0}], 2),
        (None, {"count": 2, "cpus": 2}, [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 1.0}], 1),
        (None, {"count": [2, 4]}, [{"CPU": 9.0}], 2),
        (None, {"count": [2, 4]}, [{"CPU": 3.0}], 1),
    ],
)
def test_number_of_trials_that_fit_at_once(
    cap: int | None, workers: dict[str, Any], nodes: list[dict[str, float]], rooms: int
) -> None:
    sweep = of({"a": {"choice": [1, 2, 3]}}, max_concurrent=cap)
    assert count_concurrent_trials(sweep, 10, Workers(**workers), nodes) == rooms
