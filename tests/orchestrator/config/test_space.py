"""The space of a sweep: its domains by themselves, and the arithmetic of trials."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.experiment import Sweep
from orchestrator.config.space import candidates, count_trials, overlaps, trials_at_once, wrong_domain


@pytest.mark.parametrize(
    "domain",
    [
        {"choice": [1, "a", None]},
        {"grid": [0.1]},
        {"uniform": [0, 1]},
        {"loguniform": [1e-5, 1]},
        {"quniform": [0, 1, 0.25]},
        {"randint": [1, 9]},
        {"lograndint": [1, 9]},
        {"normal": [0, 1]},
    ],
)
def test_good_domains(domain: dict[str, Any]) -> None:
    assert wrong_domain("optimizer.lr", domain, "random") is None


@pytest.mark.parametrize(
    ("domain", "path", "said"),
    [
        ({}, "", "exactly one of"),
        ({"choice": [1], "uniform": [0, 1]}, "", "exactly one of"),
        ([1, 2], "", "exactly one of"),
        ({"unifrom": [0, 1]}, ".unifrom", "is no domain"),
        ({"choice": []}, ".choice", "a list of values"),
        ({"grid": 3}, ".grid", "a list of values"),
        ({"uniform": [1, 0]}, ".uniform", "low < high"),
        ({"uniform": [1, 1]}, ".uniform", "low < high"),
        ({"uniform": [1]}, ".uniform", "must be [low, high]"),
        ({"uniform": ["0", 1]}, ".uniform", "must be [low, high]"),
        ({"uniform": [False, True]}, ".uniform", "must be [low, high]"),
        ({"loguniform": [0, 1]}, ".loguniform", "low > 0"),
        ({"lograndint": [0, 5]}, ".lograndint", "low > 0"),
        ({"randint": [0, 1.5]}, ".randint", "whole numbers"),
        ({"quniform": [0, 1]}, ".quniform", "[low, high, step]"),
        ({"quniform": [0, 1, 0]}, ".quniform", "step greater than 0"),
        ({"normal": [0, 0]}, ".normal", "sd greater than 0"),
    ],
)
def test_wrong_domains(domain: Any, path: str, said: str) -> None:
    problem = wrong_domain("optimizer.lr", domain, "random")
    assert problem is not None
    assert problem.path == f"sweep.space.optimizer.lr{path}"
    assert said in problem.message


def test_a_grid_has_points() -> None:
    assert wrong_domain("optimizer.lr", {"choice": [1]}, "grid") is None
    assert "cannot be searched by grid" in str(wrong_domain("optimizer.lr", {"uniform": [0, 1]}, "grid"))


@pytest.mark.parametrize("name", ["name", "workers.count", "sweep.trials", "base"])
def test_what_trials_share_cannot_be_swept(name: str) -> None:
    assert "cannot be swept" in str(wrong_domain(name, {"choice": [1]}, "random"))


@pytest.mark.parametrize(
    ("kind", "values", "tried"),
    [
        ("choice", [1, 2, 3], [1, 2, 3]),
        ("uniform", [0, 1], [0.0, 1.0]),
        ("quniform", [1, 5, 2], [1.0, 5.0]),
        ("randint", [1, 5], [1, 4]),
        ("lograndint", [1, 5], [1, 4]),
        ("normal", [10, 2], [10.0, 4.0, 16.0]),
    ],
)
def test_what_a_domain_is_tried_by(kind: str, values: list[Any], tried: list[Any]) -> None:
    found = candidates(kind, values)
    assert found == tried
    assert [type(value) for value in found] == [type(value) for value in tried]


def test_a_path_inside_another_is_told() -> None:
    (problem,) = overlaps(["hooks.ema", "hooks.ema.decay", "hooks.emaster"])
    assert problem.path == "sweep.space.hooks.ema.decay"


def sweep(**more: Any) -> Sweep:
    space = {"a": {"choice": [1, 2, 3]}, "b": {"grid": [1, 2]}}
    return Sweep.model_validate({"metric": "val/loss", "trials": 5, "space": space, **more})


def test_how_many_trials() -> None:
    assert count_trials(sweep()) == 5 * 2
    assert count_trials(sweep(search="grid")) == 5 * 2 * 3


@pytest.mark.parametrize(
    ("cap", "asked", "present", "rooms"),
    [
        (None, {"cpu": 2, "gpu": 0}, {"cpu": 7, "gpu": 0}, 3),
        (None, {"cpu": 1, "gpu": 1}, {"cpu": 16, "gpu": 2}, 2),
        (2, {"cpu": 1, "gpu": 0}, {"cpu": 16}, 2),
        (None, {"cpu": 1}, {"cpu": 64}, 10),
        (None, {"cpu": 4}, {"cpu": 2}, 0),
        (None, {"cpu": 0.5}, {"cpu": 2}, 4),
    ],
)
def test_how_many_at_a_time(cap: int | None, asked: dict[str, float], present: dict[str, float], rooms: int) -> None:
    assert trials_at_once(sweep(max_concurrent=cap), 10, asked, present) == rooms
