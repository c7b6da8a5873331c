from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from ray.tune.search.variant_generator import generate_variants

from orchestrator.config.experiment import Sweep
from orchestrator.sweeps.space import tune_space


def draws(space: dict[str, Any], search: Literal["grid", "random"] = "random", count: int = 300) -> list[dict[str, Any]]:
    random = np.random.RandomState(0)
    given = tune_space(Sweep(metric="val/loss", space=space, search=search))
    return [spec for _ in range(count) for _, spec in generate_variants(given, random_state=random)]


def values(domain: dict[str, Any]) -> list[Any]:
    return [draw["x"] for draw in draws({"x": domain})]


def test_a_grid_is_every_combination_once() -> None:
    space = {"a": {"grid": [1, 2]}, "b": {"choice": ["x", "y"]}}
    found = {(draw["a"], draw["b"]) for draw in draws(space, "grid", count=1)}
    assert found == {(1, "x"), (1, "y"), (2, "x"), (2, "y")}
    assert len(draws(space, "grid", count=1)) == 4


def test_a_choice_of_a_random_search_is_drawn() -> None:
    found = values({"choice": [1, "a", None]})
    assert len(found) == 300
    assert {found.count(value) > 60 for value in (1, "a", None)} == {True}


@pytest.mark.parametrize(
    ("domain", "low", "high", "median"),
    [
        ({"uniform": [2.0, 4.0]}, 2.0, 4.0, 3.0),
        ({"loguniform": [1e-4, 1.0]}, 1e-4, 1.0, 1e-2),
        ({"randint": [0, 10]}, 0, 9, 4.5),
        ({"lograndint": [1, 1000]}, 1, 999, math.sqrt(1000)),
        ({"normal": [5.0, 0.1]}, 4, 6, 5.0),
        ({"quniform": [0.0, 1.0, 0.25]}, 0, 1, 0.5),
    ],
)
def test_numbers_come_from_their_domain(domain: dict[str, Any], low: float, high: float, median: float) -> None:
    found = values(domain)
    assert low <= min(found) <= max(found) <= high
    assert np.median(found) == pytest.approx(median, rel=0.3)


def test_steps_and_whole_numbers_are_kept() -> None:
    assert set(values({"quniform": [0.0, 1.0, 0.25]})) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(isinstance(value, int | np.integer) for value in values({"randint": [0, 10]}))
