"""The space of a sweep: what is drawn beside what, and the arithmetic of trials."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.checks.space import (
    count_points,
    count_trials,
    grid_points,
    is_drawn,
    mutated_paths,
    overlaps,
    trials_at_once,
    unsearchable,
    wrong_counts,
    wrong_mutations,
)
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.sections.workers import Workers
from orchestrator.errors import ConfigError


def of(space: dict[str, Any], **more: Any) -> Sweep:
    return Sweep.model_validate({"metric": "val/loss", "space": space, **more})


def test_a_grid_has_points() -> None:
    (problem,) = unsearchable(of({"a": {"choice": [1]}, "optimizer.lr": {"uniform": [0, 1]}}, search="grid"))
    assert problem.path == "sweep.space.optimizer.lr.uniform"
    assert "cannot be searched by grid" in problem.message


@pytest.mark.parametrize(
    ("domain", "instead"), [({"grid": [1, 2]}, "write choice"), ({"normal": [0, 1]}, "write uniform")]
)
def test_what_optuna_does_not_draw_from(domain: dict[str, Any], instead: str) -> None:
    (problem,) = unsearchable(of({"a": {"choice": [1]}, "optimizer.lr": domain}, search="optuna"))
    assert instead in problem.message


@pytest.mark.parametrize("name", ["name", "workers.count", "sweep.trials"])
def test_what_trials_share_cannot_be_swept(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(Sweep, {"metric": "val/loss", "space": {name: {"choice": [1]}}}, "sweep")
    (problem,) = caught.value.problems
    assert problem.path == f"sweep.space.{name}"
    assert problem.message == f"cannot be swept: the trials of a sweep share their {name.partition('.')[0]}"


ON = {"choice": [None, {}, {"average": "stochastic", "decay": 0}]}


def test_a_path_inside_a_choice_is_drawn_where_that_is_on_and_leaves_it_open() -> None:
    space = of({"hooks.ema": ON, "hooks.ema.decay": {"uniform": [0, 0.9]}}).space
    assert not overlaps(of(space))
    drawn = [
        is_drawn("hooks.ema.decay", space, {"hooks.ema": value}) for value in (None, False, True, {}, {"decay": 0})
    ]
    assert drawn == [False, False, True, True, False]
    assert is_drawn("hooks.ema", space, {})


@pytest.mark.parametrize(
    ("outer", "said"),
    [
        ({"uniform": [0, 1]}, "which is swept too"),
        ({"choice": [1, 2]}, "which is swept too"),
        ({"choice": [None, {"decay": 0.5}]}, "is never drawn"),
        ({"choice": [None, False]}, "is never drawn"),
    ],
)
def test_a_path_inside_anything_else_is_told(outer: dict[str, Any], said: str) -> None:
    (problem,) = overlaps(
        of({"hooks.ema": outer, "hooks.ema.decay": {"choice": [0.1]}, "hooks.emaster": {"choice": [1]}})
    )
    assert problem.path == "sweep.space.hooks.ema.decay"
    assert said in problem.message


def test_a_grid_cannot_lie_inside_what_is_drawn() -> None:
    space = {"hooks.ema": ON, "hooks.ema.decay": {"grid": [0.1, 0.2]}}
    assert "write choice" in str(overlaps(of(space))[0])
    assert not overlaps(of(space, search="grid"))


def test_the_grid_has_no_points_below_what_is_off() -> None:
    sweep = of({"hooks.ema.decay": {"grid": [0.1, 0.2]}, "hooks.ema": ON, "seed": {"choice": [1]}}, search="grid")
    points = list(grid_points(sweep))
    assert count_points(sweep) == 4
    assert points == [
        {"seed": 1, "hooks.ema": None},
        {"seed": 1, "hooks.ema": {}, "hooks.ema.decay": 0.1},
        {"seed": 1, "hooks.ema": {}, "hooks.ema.decay": 0.2},
        {"seed": 1, "hooks.ema": {"average": "stochastic", "decay": 0}},
    ]


MIXED = {
    "hooks.ema": ON,
    "hooks.ema.decay": {"uniform": [0.1, 0.9]},
    "optimizer.lr": {"loguniform": [0.01, 1]},
    "optimizer.type": {"choice": ["SGD", "Adam"]},
    "batch_size": {"choice": [8, 16]},
}


def test_a_population_changes_fields_of_hooks_and_numbers_of_the_optimizer() -> None:
    assert mutated_paths(of(MIXED, scheduler="pbt", trials=4)) == ["hooks.ema.decay", "optimizer.lr"]
    assert mutated_paths(of(MIXED, scheduler={"type": "pbt", "mutate": ["optimizer.lr"]}, trials=4)) == ["optimizer.lr"]
    assert mutated_paths(of(MIXED, trials=4)) == []


@pytest.mark.parametrize(
    ("space", "scheduler", "trials", "path", "said"),
    [
        (MIXED, {"type": "pbt", "mutate": ["batch_size"]}, 4, "sweep.scheduler.mutate.0", "cannot change in flight"),
        (
            MIXED,
            {"type": "pbt", "mutate": ["optimizer.lr", "optimizer.mom"]},
            4,
            "sweep.scheduler.mutate.1",
            "no path of the space",
        ),
        (MIXED, {"type": "pbt"}, 1, "sweep.trials", "population of 2"),
        ({"batch_size": {"choice": [8]}}, {"type": "pbt"}, 4, "sweep.scheduler", "nothing to change"),
        (MIXED, {"type": "pb2"}, 4, "sweep.space.hooks.ema.decay", "always there"),
        ({"optimizer.lr": {"normal": [0, 1]}}, {"type": "pb2"}, 4, "sweep.space.optimizer.lr", "both ends"),
        ({"optimizer.lr": {"choice": [1, 2]}}, {"type": "pb2"}, 4, "sweep.space.optimizer.lr", "ranges"),
    ],
)
def test_what_a_population_cannot_change(space: Any, scheduler: Any, trials: int, path: str, said: str) -> None:
    (problem,) = wrong_mutations(of(space, scheduler=scheduler, trials=trials))
    assert problem.path == path
    assert said in problem.message


def sweep(**more: Any) -> Sweep:
    space = {"a": {"choice": [1, 2, 3]}, "b": {"grid": [1, 2]}}
    return Sweep.model_validate({"metric": "val/loss", "space": space, **more})


def test_trials_is_how_many_there_are() -> None:
    assert count_trials(sweep(trials=10)) == 10
    assert count_trials(sweep(trials=6, search="grid")) == 6
    assert count_trials(sweep(trials=10, budget={"trials": 7})) == 7
    assert count_trials(sweep(trials=10, budget={"trials": 70})) == 10


def test_without_trials_each_configuration_runs_once_or_as_often_as_it_repeats() -> None:
    assert count_trials(sweep(search="grid")) == 3 * 2
    assert count_trials(sweep(search="grid", repeats=4)) == 3 * 2 * 4
    assert count_trials(sweep(repeats=4)) == 2 * 4
    assert (
        count_trials(Sweep.model_validate({"metric": "val/loss", "space": {"a": {"uniform": [0, 1]}}, "repeats": 4}))
        == 4
    )


@pytest.mark.parametrize(
    "more",
    [
        {"search": "grid"},
        {"search": "grid", "trials": 6},
        {"search": "grid", "repeats": 4, "trials": 24},
        {"search": "grid", "trials": 6, "budget": {"trials": 5}},
        {"trials": 2},
        {"trials": 8, "points": [{"a": 1}] * 4},
        {"trials": 12, "repeats": 3, "points": [{"a": 1}] * 2},
    ],
)
def test_trials_that_are_whole_rounds(more: dict[str, Any]) -> None:
    assert not list(wrong_counts(sweep(**more)))


@pytest.mark.parametrize(
    ("more", "path", "said"),
    [
        ({"search": "grid", "trials": 24}, "trials", "a grid of 6 points has 6 trials, got 24; leave it out"),
        ({"search": "grid", "trials": 24}, "trials", "leave it out; repeats: 4 runs each point with as many seeds"),
        (
            {"search": "grid", "trials": 4},
            "trials",
            "leave it out; budget: {trials: 4} ends before the grid is through",
        ),
        ({"search": "grid", "trials": 7}, "trials", "leave it out"),
        (
            {"search": "grid", "trials": 6, "repeats": 2},
            "trials",
            "a grid of 6 points x 2 repeats has 12 trials, got 6",
        ),
        ({"trials": 5}, "trials", "5 trials are no whole number of rounds of 2 (2 points of the grid); write 4 or 6"),
        ({"trials": 1}, "trials", "write 2"),
        ({"trials": 8, "repeats": 3}, "trials", "rounds of 6 (2 points of the grid x 3 repeats); write 6 or 12"),
        ({"trials": 8, "points": [{"a": 1}] * 5}, "points", "5 points make 10 trials, and there are 8"),
        ({"points": [{"a": 1}] * 2}, "points", "2 points make 4 trials, and there are 2"),
    ],
)
def test_trials_that_do_not_come_out_even_are_refused_with_the_arithmetic(
    more: dict[str, Any], path: str, said: str
) -> None:
    (problem,) = wrong_counts(sweep(**more))
    assert problem.path == f"sweep.{path}"
    assert said in problem.message


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_repeats_share_out_trials_without_a_grid_too(search: str) -> None:
    (problem,) = wrong_counts(of({"a": {"uniform": [0, 1]}}, search=search, trials=10, repeats=4))
    assert "10 trials are no whole number of rounds of 4 (4 repeats); write 8 or 12" in problem.message
    assert not list(wrong_counts(of({"a": {"uniform": [0, 1]}}, search=search, trials=12, repeats=4)))


def test_repeats_give_the_seed_that_a_space_would_vary() -> None:
    (problem,) = wrong_counts(of({"seed": {"choice": [1, 2]}, "a": {"choice": [1]}}, trials=4, repeats=2))
    assert (problem.path, "repeats: 2 gives each trial its seed" in problem.message) == ("sweep.space.seed", True)
    assert not list(wrong_counts(of({"seed": {"choice": [1, 2]}}, trials=4)))


@pytest.mark.parametrize(
    ("cap", "workers", "nodes", "rooms"),
    [
        (None, {"count": 2}, [{"CPU": 7.0}], 3),
        (None, {"count": 1, "gpu": True}, [{"CPU": 16.0, "GPU": 2.0}], 2),
        (2, {"count": 1}, [{"CPU": 16.0}], 2),
        (None, {"count": 1}, [{"CPU": 64.0}], 10),
        (None, {"count": 4}, [{"CPU": 2.0}], 0),
        (3, {"count": 2, "cpus": 0.5}, [{"CPU": 2.0}], 2),
        (None, {"count": 1, "gpu": True}, [{"CPU": 16.0}], 0),
        # 0.6 / 0.2 is less than 3 in floating point.
        (None, {"count": 3, "cpus": 0.2}, [{"CPU": 0.6}], 1),
        # A rank needs its place on one node: of 3 CPUs each, a third rank of 2 finds none though 2 CPUs are left.
        (None, {"count": 1, "cpus": 2}, [{"CPU": 3.0}, {"CPU": 3.0}], 2),
        (None, {"count": 2, "cpus": 2}, [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 1.0}], 1),
        (None, {"count": 1}, [], 0),
        (None, {"count": [2, 4]}, [{"CPU": 9.0}], 2),
        (None, {"count": [2, 4]}, [{"CPU": 3.0}], 1),
        (None, {"count": [2, 4]}, [{"CPU": 1.0}], 0),
    ],
)
def test_how_many_at_a_time(
    cap: int | None, workers: dict[str, Any], nodes: list[dict[str, float]], rooms: int
) -> None:
    assert trials_at_once(sweep(max_concurrent=cap), 10, Workers(**workers), nodes) == rooms
