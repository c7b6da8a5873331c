"""The sweep section: its schedulers, ends and budgets, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.python.parameters import check
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import ConfigError

SPACE = {"optimizer.lr": {"uniform": [0.1, 0.9]}}


def section(**more: Any) -> Sweep:
    return check(Sweep, {"metric": "val/loss", "trials": 4, "space": SPACE, **more}, "sweep")


def refused(**more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        section(**more)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("ashaa", "sweep.scheduler.type: must be one of 'fifo', 'asha', 'hyperband', 'median', 'race', 'pbt'"),
        ({"type": "asha", "grace_perod": 2}, "sweep.scheduler.grace_perod: unknown key (did you mean 'grace_period'?)"),
        ({"type": "pbt", "perturbation_factors": [0, 1.2]}, "sweep.scheduler.perturbation_factors.0: must be"),
        ({"type": "pb2", "resample_probability": 0.1}, "sweep.scheduler.resample_probability: unknown key"),
        ({"grace_period": 1}, "sweep.scheduler: must have a `type`"),
        (3, "sweep.scheduler: must be a mapping, got 3"),
    ],
)
def test_invalid_trial_scheduler_is_located(scheduler: Any, message: str) -> None:
    assert message in refused(scheduler=scheduler)


def test_objectives_pair_metrics_with_modes() -> None:
    assert section().objectives == [("val/loss", "min")]
    assert section(metric="val/loss", mode="max").objectives == [("val/loss", "max")]
    two = {"metric": ["val/accuracy", "train/iteration_s"], "search": "optuna"}
    assert section(**two, mode=["max", "min"]).objectives == [("val/accuracy", "max"), ("train/iteration_s", "min")]
    assert section(**two, mode="min").objectives == [("val/accuracy", "min"), ("train/iteration_s", "min")]
