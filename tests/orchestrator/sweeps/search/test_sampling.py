"""Drawing from the space: each domain's numbers, grids, conditions, points to try first, and mutations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from orchestrator.config.sections.sweep import Sweep
from orchestrator.sweeps.search.sampling import bounds, clipped, draw, mutated, random_points


def sweep(space: dict[str, Any], **more: Any) -> Sweep:
    return Sweep.model_validate({"metric": "val/loss", "space": space, **more})


def values(domain: dict[str, Any], count: int = 400) -> list[Any]:
    return [point["x"] for point in random_points(sweep({"x": domain}, trials=count))]


def test_a_grid_is_every_combination_once() -> None:
    space = {"a": {"grid": [1, 2]}, "b": {"choice": ["x", "y"]}}
    found = [(point["a"], point["b"]) for point in random_points(sweep(space, search="grid"))]
    assert found == list(itertools.product([1, 2], ["x", "y"]))


def test_with_random_search_the_rest_is_drawn_for_each_point_of_a_grid() -> None:
    points = random_points(sweep({"a": {"grid": [1, 2]}, "b": {"uniform": [0, 1]}}, trials=6))
    assert [point["a"] for point in points] == [1, 2, 1, 2, 1, 2]
    assert len({point["b"] for point in points}) == 6


def test_a_choice_of_a_random_search_is_drawn() -> None:
    found = values({"choice": [1, "a", None]})
    assert len(found) == 400
    assert all(80 < found.count(value) < 190 for value in (1, "a", None))


@pytest.mark.parametrize(
    ("domain", "low", "high", "median"),
    [
        ({"uniform": [2.0, 4.0]}, 2.0, 4.0, 3.0),
        ({"loguniform": [1e-4, 1.0]}, 1e-4, 1.0, 1e-2),
        ({"randint": [0, 10]}, 0, 9, 4.5),
        ({"lograndint": [1, 1000]}, 1, 999, math.sqrt(1000)),
        ({"normal": [5.0, 0.1]}, 4, 6, 5.0),
        ({"normal": [5.0, 3.0, 4.5, 6.0]}, 4.5, 6, 5.0),
        ({"quniform": [0.0, 1.0, 0.25]}, 0, 1, 0.5),
        ({"qloguniform": [1, 10000, 1]}, 1, 10000, 100),
    ],
)
def test_numbers_come_from_their_domain(domain: dict[str, Any], low: float, high: float, median: float) -> None:
    found = values(domain)
    assert low <= min(found) <= max(found) <= high
    assert np.median(found) == pytest.approx(median, rel=0.3)


def test_steps_and_whole_numbers_are_kept() -> None:
    assert set(values({"quniform": [0.0, 1.0, 0.25]})) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert set(values({"quniform": [8, 24, 8]})) == {8, 16, 24}
    assert set(values({"randint": [0, 3]})) == {0, 1, 2}
    assert set(values({"lograndint": [1, 4]})) == {1, 2, 3}
    for domain in ({"quniform": [8, 24, 8]}, {"randint": [0, 3]}, {"lograndint": [1, 4]}, {"qloguniform": [1, 64, 1]}):
        assert {type(value) for value in values(domain)} == {int}


def test_steps_have_no_noise() -> None:
    assert {f"{value}" for value in values({"quniform": [0.01, 1.0, 0.01]})} <= {
        f"{step / 100}" for step in range(1, 101)
    }


def test_the_same_seed_draws_the_same() -> None:
    space = {"a": {"uniform": [0, 1]}, "b": {"loguniform": [0.1, 1]}, "c": {"choice": list(range(100))}}
    one, same, other = (random_points(sweep(space, trials=5, seed=seed)) for seed in (3, 3, 4))
    assert one == same != other


SWITCHED = {
    "hooks.ema.decay": {"uniform": [0.5, 0.9]},
    "hooks.ema": {"choice": [None, {}, {"average": "stochastic", "decay": 0}]},
}


def test_what_lies_inside_a_choice_is_drawn_only_where_that_is_on() -> None:
    points = random_points(sweep(SWITCHED, trials=60))
    assert all(("hooks.ema.decay" in point) == (point["hooks.ema"] == {}) for point in points)
    assert 10 < sum("hooks.ema.decay" in point for point in points) < 30
    # The hook comes before its field, as they are laid over the experiment in this order.
    assert all(next(iter(point)) == "hooks.ema" for point in points)


def test_points_come_first_and_what_they_do_not_say_is_drawn() -> None:
    points = [{"a": 0.5}, {"b": 0.25}]
    drawn = random_points(sweep({"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}}, trials=3, points=points))
    assert (drawn[0]["a"], drawn[1]["b"]) == (0.5, 0.25)
    assert len({value for point in drawn for value in point.values()}) == 6


def test_the_budget_of_trials_cuts_them_short() -> None:
    space = {"a": {"grid": [1, 2, 3]}}
    assert random_points(sweep(space, trials=6, budget={"trials": 4})) == random_points(sweep(space, trials=6))[:4]


# Mutation

POPULATION = {
    "hooks.ema.decay": {"uniform": [0.5, 0.9]},
    "hooks.ema.every": {"randint": [1, 5]},
    "hooks.ema.average": {"choice": ["a", "b", "c"]},
    "optimizer.lr": {"qloguniform": [0.01, 1, 0.01]},
    "batch_size": {"choice": [8, 16]},
}


def test_mutations_stay_in_their_domains() -> None:
    settings = sweep(POPULATION, scheduler={"type": "pbt", "perturbation_factors": [0.1, 7]}, trials=4)
    random = np.random.RandomState(0)
    point = {
        "hooks.ema.decay": 0.7,
        "hooks.ema.every": 2,
        "hooks.ema.average": "b",
        "optimizer.lr": 0.1,
        "batch_size": 8,
    }
    seen = []
    for _ in range(200):
        point = mutated(settings, point, random)
        seen.append(point)
    for name, domain in settings.space.items():
        assert all(one[name] in domain for one in seen)
        assert {type(one[name]) for one in seen} == {type(draw(domain, random))}
    assert {one["batch_size"] for one in seen} == {8}
    assert {one["hooks.ema.average"] for one in seen} == {"a", "b", "c"}
    assert {0.5, 0.9} < {one["hooks.ema.decay"] for one in seen}


def test_without_resampling_a_number_is_multiplied_and_a_choice_moves_to_a_neighbour() -> None:
    scheduler = {"type": "pbt", "resample_probability": 0, "perturbation_factors": [0.8, 1.2]}
    settings = sweep(POPULATION, scheduler=scheduler, trials=4)
    random = np.random.RandomState(0)
    point = {
        "hooks.ema.decay": 0.7,
        "hooks.ema.every": 4,
        "hooks.ema.average": "a",
        "optimizer.lr": 0.5,
        "batch_size": 8,
    }
    seen = [mutated(settings, point, random) for _ in range(50)]
    assert {round(one["hooks.ema.decay"], 9) for one in seen} == {0.56, 0.84}
    assert {one["hooks.ema.every"] for one in seen} == {3, 4}  # 4.8 is beyond the last, 4
    assert {one["hooks.ema.average"] for one in seen} == {"a", "b"}
    assert {one["optimizer.lr"] for one in seen} == {0.4, 0.6}


def test_a_value_that_is_not_there_is_not_mutated() -> None:
    settings = sweep(SWITCHED, scheduler="pbt", trials=4)
    assert mutated(settings, {"hooks.ema": None}, np.random.RandomState(0)) == {"hooks.ema": None}


def test_what_pb2_chooses_is_put_into_its_domain() -> None:
    settings = sweep(
        {"hooks.ema.decay": {"uniform": [0.5, 0.999]}, "batch_size": {"choice": [8]}}, scheduler="pb2", trials=4
    )
    assert clipped(settings, {"hooks.ema.decay": float(np.float32(0.999)), "batch_size": 8}) == {
        "hooks.ema.decay": 0.999,
        "batch_size": 8,
    }
    assert float(np.float32(0.999)) > 0.999
    assert bounds(settings) == {"hooks.ema.decay": [0.5, 0.999]}
