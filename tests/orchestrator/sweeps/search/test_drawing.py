"""Values drawn from a space."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.search.drawing import draw_points
from tests.orchestrator.sweeps.search.draws import Draws

SPACE = {"hooks.ema.decay": {"uniform": [0.0, 0.99]}, "optimizer.lr": {"loguniform": [1e-4, 1.0]}}


def sweep(**more: Any) -> SweepSettings:
    return SweepSettings.model_validate(
        {"metric": "val/score", "mode": "max", "trials": 40, "space": SPACE, **more}
    )


def sweep_over(space: dict[str, Any], **more: Any) -> SweepSettings:
    return SweepSettings.model_validate({"metric": "val/loss", "space": space, **more})


def test_each_point_of_a_grid_runs_with_its_seeds() -> None:
    space = {"batch_size": {"grid": [8, 16]}, "optimizer.lr": {"grid": [0.1, 0.2]}}
    drawn = list(Draws(sweep(search="grid", space=space, trials=None, repeats=3), 7))
    assert [number for number, _ in drawn] == list(range(12))
    assert [tuple(values.values()) for _, values in drawn] == [
        (size, lr, seed) for size in (8, 16) for lr in (0.1, 0.2) for seed in (7, 8, 9)
    ]
    assert {tuple(values) for _, values in drawn} == {("batch_size", "optimizer.lr", "seed")}


def test_repeats_of_a_random_search_have_the_values_that_it_draws_without_them() -> None:
    alone = [values for _, values in Draws(sweep(trials=4), 0)]
    drawn = [values for _, values in Draws(sweep(trials=12, repeats=3), 0)]
    assert drawn == [{**values, "seed": seed} for values in alone for seed in (0, 1, 2)]
    assert list(Draws(sweep(trials=12, repeats=3, budget={"trials": 4}), 0)) == list(
        enumerate(drawn[:4])
    )


def test_a_grid_is_every_combination_once() -> None:
    space = {"a": {"grid": [1, 2]}, "b": {"choice": ["x", "y"]}}
    points = [(point["a"], point["b"]) for point in draw_points(sweep_over(space, search="grid"))]
    assert points == list(itertools.product([1, 2], ["x", "y"]))


def test_a_random_search_draws_the_other_paths_for_each_point_of_a_grid() -> None:
    space = {"a": {"grid": [1, 2]}, "b": {"uniform": [0, 1]}}
    points = draw_points(sweep_over(space, trials=6))
    assert [point["a"] for point in points] == [1, 2, 1, 2, 1, 2]
    assert len({point["b"] for point in points}) == 6
    assert draw_points(sweep_over(space, trials=6, budget={"trials": 4})) == points[:4]
    assert (
        draw_points(sweep_over(space, trials=6, seed=0))
        == points
        != draw_points(sweep_over(space, trials=6, seed=4))
    )


@pytest.mark.parametrize(
    ("domain", "low", "high", "median", "kind"),
    [
        ({"uniform": [2.0, 4.0]}, 2.0, 4.0, 3.0, float),
        ({"loguniform": [1e-4, 1.0]}, 1e-4, 1.0, 1e-2, float),
        ({"randint": [0, 10]}, 0, 9, 4.5, int),
        ({"lograndint": [1, 1000]}, 1, 999, math.sqrt(1000), int),
        ({"normal": [5.0, 0.1]}, 4, 6, 5.0, float),
        ({"normal": [5.0, 3.0, 4.5, 6.0]}, 4.5, 6, 5.0, float),
        ({"quniform": [0.0, 1.0, 0.25]}, 0, 1, 0.5, float),
        ({"quniform": [8, 24, 8]}, 8, 24, 16, int),
        ({"qloguniform": [1, 10000, 1]}, 1, 10000, 100, int),
        ({"choice": [1, 2, 3]}, 1, 3, 2, int),
    ],
)
def test_drawn_numbers_are_in_their_domain(
    domain: dict[str, Any], low: float, high: float, median: float, kind: Any
) -> None:
    values = [point["x"] for point in draw_points(sweep_over({"x": domain}, trials=400))]
    assert low <= min(values) <= max(values) <= high
    assert np.median(values) == pytest.approx(median, rel=0.3)
    assert {type(value) for value in values} == {kind}


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ({"quniform": [0.0, 1.0, 0.25]}, {0.0, 0.25, 0.5, 0.75, 1.0}),
        ({"quniform": [0.01, 0.05, 0.01]}, {0.01, 0.02, 0.03, 0.04, 0.05}),
        ({"quniform": [8, 24, 8]}, {8, 16, 24}),
        ({"randint": [0, 3]}, {0, 1, 2}),
        ({"lograndint": [1, 4]}, {1, 2, 3}),
        ({"choice": [1, "a", None]}, {1, "a", None}),
    ],
)
def test_every_value_of_a_domain_is_drawn(domain: dict[str, Any], expected: set[Any]) -> None:
    """Without rounding errors."""
    assert {point["x"] for point in draw_points(sweep_over({"x": domain}, trials=200))} == expected


@pytest.mark.parametrize(
    ("domain", "shares"),
    [
        ({"quniform": [1, 3, 1]}, {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}),
        ({"quniform": [0, 10, 4]}, {0: 1 / 3, 4: 1 / 3, 8: 1 / 3}),
        ({"quniform": [0.5, 1.0, 0.25]}, {0.5: 1 / 3, 0.75: 1 / 3, 1.0: 1 / 3}),
        (
            {"qloguniform": [1, 3, 1]},
            {1: 1 / 2, 2: math.log2(3) / 2 - 1 / 2, 3: 1 - math.log2(3) / 2},
        ),
        ({"lograndint": [1, 4]}, {1: 1 / 2, 2: math.log2(3) / 2 - 1 / 2, 3: 1 - math.log2(3) / 2}),
    ],
)
def test_the_ends_of_steps_are_drawn_as_often_as_the_values_between(
    domain: dict[str, Any], shares: dict[float, float]
) -> None:
    """On a logarithmic scale, a value has the share up to the next one: 1 to 2 is half of 1 to 4."""
    values = [point["x"] for point in draw_points(sweep_over({"x": domain}, trials=3000))]
    for value, share in shares.items():
        assert values.count(value) / 3000 == pytest.approx(share, abs=0.03)


SWITCHED = {
    "hooks.ema.decay": {"uniform": [0.5, 0.9]},
    "hooks.ema": {"choice": [None, {}, {"average": "stochastic", "decay": 0}]},
}


def test_path_is_drawn_only_inside_its_choice() -> None:
    points = draw_points(sweep_over(SWITCHED, trials=60))
    assert all(("hooks.ema.decay" in point) == (point["hooks.ema"] == {}) for point in points)
    assert 10 < sum("hooks.ema.decay" in point for point in points) < 30
    # The hook comes before its field, as a trial's values override the experiment in this order.
    assert all(next(iter(point)) == "hooks.ema" for point in points)


def test_points_come_first_and_missing_values_are_drawn() -> None:
    points = [{"a": 0.5}, {"b": 0.25}]
    drawn = draw_points(
        sweep_over({"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}}, trials=3, points=points)
    )
    assert (drawn[0]["a"], drawn[1]["b"]) == (0.5, 0.25)
    assert len({value for point in drawn for value in point.values()}) == 6
    space = {"a": {"uniform": [0, 1]}, "b": {"grid": [1, 2]}}
    drawn = draw_points(sweep_over(space, trials=8, points=[{"b": 2}, {"a": 0.5}, {"b": 2}]))
    assert [point["b"] for point in drawn] == [2, 1, 2, 2, 1, 1, 1, 2], "each item equally often"
    assert [point["a"] for point in drawn].count(0.5) == 2
