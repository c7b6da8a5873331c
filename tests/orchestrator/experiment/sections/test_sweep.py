"""The sweep section: its schedulers, ends and budgets, and what does not go together."""

import sys
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.sweep import SweepSettings

SPACE = {"optimizer.lr": {"uniform": [0.1, 0.9]}}


def section(**more: Any) -> SweepSettings:
    return validate(
        SweepSettings, {"metric": "val/loss", "trials": 4, "space": SPACE, **more}, "sweep"
    )


def refused(**more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        section(**more)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (
            "ashaa",
            "sweep.scheduler.type: must be one of 'fifo', 'asha', 'hyperband', 'median', 'race', 'pbt'",
        ),
        (
            {"type": "asha", "grace_perod": 2},
            "sweep.scheduler.grace_perod: unknown key (did you mean 'grace_period'?)",
        ),
        (
            {"type": "pbt", "perturbation_factors": [0, 1.2]},
            "sweep.scheduler.perturbation_factors.0: must be",
        ),
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
    assert section(**two, mode=["max", "min"]).objectives == [
        ("val/accuracy", "max"),
        ("train/iteration_s", "min"),
    ]
    assert section(**two, mode="min").objectives == [
        ("val/accuracy", "min"),
        ("train/iteration_s", "min"),
    ]


@pytest.mark.parametrize(
    ("domain", "path", "message"),
    [
        ({}, "", "exactly one of"),
        ([1, 2], "", "must be a mapping, got [1, 2]"),
        ({"unifrom": [0, 1]}, ".unifrom", "unknown key (did you mean 'uniform'?)"),
        ({"gamma": [0, 1]}, ".gamma", "unknown key (known: choice, fan_out, grid, lograndint, "),
        ({"uniform": [0, float("inf")]}, ".uniform.1", "must be a finite number"),
        ({"choice": []}, ".choice", "must not be empty"),
        ({"grid": 3}, ".grid", "must be a list, got 3"),
        ({"uniform": [1, 0]}, "", "low must be below high"),
        ({"uniform": [1]}, ".uniform", "must have at least 2 entries"),
        ({"uniform": ["0", 1]}, ".uniform.0", "must be a number, got '0'"),
        ({"uniform": [0, True]}, ".uniform.1", "must be a number, got true"),
        ({"loguniform": [0, 1]}, "", "low must be greater than 0"),
        ({"randint": [0, 1.5]}, ".randint.1", "must be an integer, got 1.5"),
        ({"quniform": [0, 1]}, ".quniform", "must have at least 3 entries"),
        ({"quniform": [0, 1, 0]}, "", "step must be greater than 0"),
        ({"normal": [0, 0]}, "", "sd must be greater than 0"),
        ({"normal": [0, 1, 2]}, "", "[mean, sd, low, high]"),
        ({"normal": [0, 1, 2, 1]}, "", "low must be below high"),
    ],
)
def test_wrong_domains_are_refused(domain: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(SweepSettings, {"metric": "val/loss", "space": {"optimizer.lr": domain}}, "sweep")
    (problem,) = caught.value.problems
    assert problem.path == f"sweep.space.optimizer.lr{path}"
    assert message in str(problem)


@pytest.mark.parametrize(
    ("kind", "values", "tried"),
    [
        ("choice", [1, 2, 3], [1, 2, 3]),
        ("uniform", [0, 1], [0.0, 1.0]),
        ("quniform", [1, 5, 2], [1, 5]),
        ("quniform", [1, 6, 2], [1, 5]),  # 6 is on no step from 1
        ("quniform", [0.9, 1.0, 0.03], [0.9, 0.99]),
        ("qloguniform", [1, 6, 2], [1, 5]),
        ("quniform", [1, 5, 0.5], [1.0, 5.0]),
        ("qloguniform", [0.1, 0.5, 0.3], [0.1, 0.4]),
        ("randint", [1, 5], [1, 4]),
        ("normal", [10, 2], [-sys.float_info.max, sys.float_info.max]),
        ("normal", [10, 2, 5, 12], [5.0, 12.0]),
    ],
)
def test_candidates_are_listed_values_or_both_ends(
    kind: str, values: list[Any], tried: list[Any]
) -> None:
    found = validate(Domain, {kind: values}, "").list_candidates()
    assert found == tried
    assert [type(value) for value in found] == [type(value) for value in tried]


@pytest.mark.parametrize(
    ("kind", "values", "number", "nearest"),
    [
        ("uniform", [0, 1], 1.2, 1.0),
        ("randint", [0, 5], 2.6, 3),
        ("quniform", [0.1, 1, 0.3], 0.6, 0.7),
        ("quniform", [0.1, 1.1, 0.3], 1.1, 1.0),  # 1.1 is on no step from 0.1
        ("qloguniform", [8, 64, 8], 30.0, 32),
        ("quniform", [0, 10**13, 1], 1234567890123, 1234567890123),
        ("normal", [0, 1, -1, 1], -4, -1.0),
        ("normal", [0, 1], -4.5, -4.5),
    ],
)
def test_nearest_value_of_a_domain(
    kind: str, values: list[Any], number: float, nearest: float
) -> None:
    found = validate(Domain, {kind: values}, "").find_nearest(number)
    assert found == nearest
    assert type(found) is type(nearest)
