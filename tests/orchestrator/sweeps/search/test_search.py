"""Searches on a known function, without training."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orchestrator.experiment.sections.sweep import Sweep
from orchestrator.sweeps.search.drawing import draw, draw_points, mutate
from tests.orchestrator.sweeps.search.draws import Draws, previous_trial

pytest.importorskip("optuna")

SPACE = {"hooks.ema.decay": {"uniform": [0.0, 0.99]}, "optimizer.lr": {"loguniform": [1e-4, 1.0]}}


def bowl(values: dict[str, Any]) -> float:
    """Best, with 0, at decay 0.7 and lr 0.01."""
    return (
        -(((values["hooks.ema.decay"] - 0.7) * 4) ** 2)
        - (math.log10(values["optimizer.lr"]) + 2) ** 2
    )


def sweep(**more: Any) -> Sweep:
    return Sweep.model_validate(
        {"metric": "val/score", "mode": "max", "trials": 40, "space": SPACE, **more}
    )


def searched(
    settings: Sweep, function: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    draws, found = Draws(settings, 0), []
    for number, values in draws:
        found.append((values, function(values)))
        draws.over(number, found[-1][1])
    return found


def test_optuna_with_the_same_seed_suggests_the_same() -> None:
    one, same, other = (
        [
            values
            for values, _ in searched(
                sweep(search="optuna", trials=15, seed=seed), lambda v: {"val/score": bowl(v)}
            )
        ]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_optuna_draws_a_path_only_inside_its_choice() -> None:
    space = {
        **SPACE,
        "hooks.ema": {"choice": [None, {}, {"decay": 0}]},
        "hooks.ema.every": {"randint": [1, 5]},
    }
    found = searched(
        sweep(search="optuna", space=space, trials=30),
        lambda values: {"val/score": values.get("hooks.ema.decay", 0.5)},
    )
    kinds = {
        str(values["hooks.ema"]): ("hooks.ema.decay" in values, "hooks.ema.every" in values)
        for values, _ in found
    }
    assert kinds == {"None": (False, False), "{}": (True, True), "{'decay': 0}": (False, True)}
    # What is better with the hook on is searched with the hook on.
    assert sum(values["hooks.ema"] == {} for values, _ in found[10:]) > 12


def test_optuna_tries_points_first_and_learns_from_them() -> None:
    space = {**SPACE, "batch_size": {"choice": [8, 16, 32]}}
    points = [
        {"hooks.ema.decay": 0.7, "optimizer.lr": 0.01, "batch_size": 32},
        {"optimizer.lr": 0.5},
    ]
    settings = sweep(search="optuna", space=space, points=points, trials=3)
    draws = Draws(settings, 0)
    (_, first), (_, second), _ = draws
    assert first == points[0]
    assert second["optimizer.lr"] == 0.5
    assert draws.search._study.trials[0].params == {
        "hooks.ema.decay": 0.7,
        "optimizer.lr": 0.01,
        "batch_size": 2,
    }


def test_optuna_learns_from_several_metrics() -> None:
    settings = sweep(
        search="optuna", metric=["val/score", "train/iteration_s"], mode=["max", "min"], trials=3
    )
    draws = Draws(settings, 0)
    for number, values in draws:
        draws.over(
            number, {"val/score": values["hooks.ema.decay"], "train/iteration_s": float(number)}
        )
    study = draws.search._study
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    expected = [[trial.params["hooks.ema.decay"], float(trial.number)] for trial in study.trials]
    assert [trial.values for trial in study.trials] == expected


def test_optuna_learns_again_from_earlier_attempts_of_the_sweep() -> None:
    """Of eight begun, five reported, one failed, one is under way and one (6) was suggested but
    never begun."""
    space = {**SPACE, "batch_size": {"choice": [8, 16, 32]}}
    settings = sweep(search="optuna", space=space, trials=12)
    known = dict(Draws(settings, 0))
    previous = {
        number: previous_trial(
            known[number],
            {5: "failed", 7: "lost"}.get(number, "finished"),
            [{"val/score": bowl(known[number])}],
        )
        for number in (0, 1, 2, 3, 4, 5, 7)
    }
    draws = Draws(settings, 0, previous)
    study = draws.search._study
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5 + [
        "FAIL",
        "RUNNING",
        "RUNNING",
    ]
    assert study.best_value == max(bowl(known[number]) for number in range(5))
    assert [trial.params["hooks.ema.decay"] for trial in study.trials if trial.number != 6] == [
        known[number]["hooks.ema.decay"] for number in previous
    ]
    drawn = {}
    for number, values in draws:
        drawn[number] = values
        draws.over(number, {"val/score": bowl(values)})
    assert list(drawn) == [6, 7, 8, 9, 10, 11]
    assert drawn[7] == known[7]
    # The seed goes on instead of giving the first draws again.
    assert all(values != known[number] for values in drawn.values() for number in range(6))
    assert [trial.state.name for trial in study.trials].count("COMPLETE") == 11


# Repeats


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


@pytest.mark.parametrize("aggregate", ["mean", "lower_bound"])
def test_optuna_learns_from_the_aggregate_of_repeats_without_failed_ones(aggregate: str) -> None:
    draws = Draws(sweep(search="optuna", trials=9, repeats=3, aggregate=aggregate), 5)
    reached = iter([1.0, 2.0, 6.0, 4.0, None, 8.0, None, None, None])
    drawn = []
    for number, values in draws:
        drawn.append((number, values))
        score = next(reached)
        draws.over(number, None if score is None else {"val/score": score})
        assert len(draws.search._study.get_trials()) == number // 3 + 1
    assert [values["seed"] for _, values in drawn] == [5, 6, 7] * 3
    for one, *others in (drawn[first : first + 3] for first in (0, 3, 6)):
        assert all({**values, "seed": 5} == one[1] for _, values in others)
    trials = draws.search._study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    # Sums of squares of 14 and 8 over 2 and 1 degrees of freedom.
    errors = [math.sqrt(14 / 2 / 3), math.sqrt(8 / 2)] if aggregate == "lower_bound" else [0, 0]
    assert [trial.value for trial in trials] == [
        pytest.approx(3.0 - errors[0]),
        pytest.approx(6.0 - errors[1]),
        None,
    ]


def test_repeats_may_end_out_of_order() -> None:
    search = Draws(sweep(search="optuna", trials=4, repeats=2), 0).search
    numbers = [search.suggest()["number"] for _ in range(4)]
    for number, score in ((3, 4.0), (0, 1.0), (2, 2.0)):
        search.record_end(number, {"val/score": score})
    search.record_end(1, None)
    assert numbers == [0, 1, 2, 3]
    assert [trial.value for trial in search._study.trials] == [1.0, 3.0]


# Shared training

SHARED = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}, "optimizer.lr": {"loguniform": [1e-4, 1.0]}}


def test_optuna_learns_from_the_best_mean_of_the_trials_that_share_a_suggestion() -> None:
    draws = Draws(sweep(search="optuna", trials=12, repeats=2, space=SHARED), 5)
    scores = [1.0, 3.0, 6.0, None, math.nan, 1.0, 0.0, 2.0, None, None, None, None]
    numbers = []
    for trials in draws.group_trials():
        numbers.append([number for number, _ in trials])
        assert [values["hooks.ema.decay"] for _, values in trials] == [0.5, 0.9]
        assert len({(values["optimizer.lr"], values["seed"]) for _, values in trials}) == 1
        for number, _ in trials:
            draws.over(number, None if scores[number] is None else {"val/score": scores[number]})
    assert numbers == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    study = draws.search._study
    assert [(trial.state.name, trial.value) for trial in study.trials] == [
        ("COMPLETE", 6.0),
        ("COMPLETE", 1.0),
        ("FAIL", None),
    ]
    assert all(set(trial.params) == {"optimizer.lr"} for trial in study.trials)


def test_an_optuna_search_with_followers_resumes_where_it_was() -> None:
    """Of the first draw one of three is over; the budget ends the sweep within the third."""
    space = {**SHARED, "hooks.ema.decay": {"fan_out": [0.5, 0.9, 0.99]}}
    settings = sweep(search="optuna", trials=9, space=space, budget={"trials": 8})
    first = dict(next(Draws(settings, 0).group_trials()))
    previous = {
        number: previous_trial(
            first[number], "finished" if number == 1 else "lost", [{"val/score": 4.0}]
        )
        for number in range(3)
    }
    draws, numbers = Draws(settings, 0, previous), []
    for trials in draws.group_trials():
        numbers.append([number for number, _ in trials])
        for number, values in trials:
            assert number not in first or values == first[number]
            draws.over(number, {"val/score": 2.0})
    assert numbers == [[0, 2], [3, 4, 5], [6, 7]]
    assert [trial.value for trial in draws.search._study.trials] == [4.0, 2.0, None]


def sweep_over(space: dict[str, Any], **more: Any) -> Sweep:
    return Sweep.model_validate({"metric": "val/loss", "space": space, **more})


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


# Mutation

POPULATION = {
    "hooks.ema.decay": {"uniform": [0.5, 0.9]},
    "hooks.ema.every": {"randint": [1, 5]},
    "hooks.ema.average": {"choice": ["a", "b", "c"]},
    "optimizer.lr": {"qloguniform": [0.01, 1, 0.01]},
    "batch_size": {"choice": [8, 16]},
}
POINT = {
    "hooks.ema.decay": 0.7,
    "hooks.ema.every": 4,
    "hooks.ema.average": "a",
    "optimizer.lr": 0.5,
    "batch_size": 8,
}


def test_mutations_stay_in_their_domains() -> None:
    settings = sweep_over(
        POPULATION, scheduler={"type": "pbt", "perturbation_factors": [0.1, 7]}, trials=4
    )
    random, points = np.random.RandomState(0), [POINT]
    for _ in range(200):
        points.append(mutate(settings, points[-1], random))
    for name, domain in settings.space.items():
        assert all(point[name] in domain for point in points)
        assert {type(point[name]) for point in points} == {type(draw(domain, random))}
    assert {point["batch_size"] for point in points} == {8}
    assert {point["hooks.ema.average"] for point in points} == {"a", "b", "c"}
    assert {0.5, 0.9} < {point["hooks.ema.decay"] for point in points}


def test_without_resampling_a_number_is_multiplied_and_a_choice_moves_to_a_neighbor() -> None:
    scheduler = {"type": "pbt", "resample_probability": 0, "perturbation_factors": [0.8, 1.2]}
    settings, random = (
        sweep_over(POPULATION, scheduler=scheduler, trials=4),
        np.random.RandomState(0),
    )
    points = [mutate(settings, POINT, random) for _ in range(50)]
    assert {round(point["hooks.ema.decay"], 9) for point in points} == {0.56, 0.84}
    assert {point["hooks.ema.every"] for point in points} == {
        3,
        4,
    }  # 4.8 exceeds the largest value, 4
    assert {point["hooks.ema.average"] for point in points} == {"a", "b"}
    assert {point["optimizer.lr"] for point in points} == {0.4, 0.6}
    assert mutate(settings, {**POINT, "hooks.ema.average": "gone"}, random)[
        "hooks.ema.average"
    ] in {"a", "b", "c"}
    switched = sweep_over(SWITCHED, scheduler="pbt", trials=4)
    assert mutate(switched, {"hooks.ema": None}, random) == {"hooks.ema": None}, (
        "a missing value stays missing"
    )
