"""The space of a sweep: paths inside paths, and the number of trials."""

from typing import Any

import pytest

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.sweep.space import (
    choose_context,
    count_concurrent_trials,
    count_points,
    count_trials,
    is_drawn,
    list_mutated_paths,
    make_grid_points,
)

ON = {"choice": [None, {}, {"average": "stochastic", "decay": 0}]}


def of(space: dict[str, Any], **more: Any) -> SweepSettings:
    return SweepSettings.model_validate({"metric": "val/loss", "space": space, **more})


def test_path_inside_a_choice_is_drawn_where_the_choice_does_not_set_it() -> None:
    space = of({"hooks.ema": ON, "hooks.ema.decay": {"uniform": [0, 0.9]}}).space
    drawn = [
        is_drawn("hooks.ema.decay", space, {"hooks.ema": value})
        for value in (None, False, True, {}, {"decay": 0})
    ]
    assert drawn == [False, False, True, True, False]
    assert is_drawn("hooks.ema", space, {})


def test_context_has_the_first_values_that_a_path_depends_on() -> None:
    space = of(
        {
            "hooks.ema": ON,
            "hooks.ema.decay": {"uniform": [0, 0.9]},
            "optimizer.type": {"choice": ["Adam", "SGD"]},
            "optimizer.lr": {"uniform": [0.1, 0.9]},
            "task": {"choice": ["a:A", "b:B"]},
        }
    ).space
    assert choose_context("hooks.ema.decay", space) == {"task": "a:A", "hooks.ema": {}}
    assert choose_context("optimizer.lr", space) == {"task": "a:A", "optimizer.type": "Adam"}
    assert choose_context("task", space) == {}


def test_grid_has_no_points_inside_a_hook_that_is_off() -> None:
    sweep = of(
        {"hooks.ema.decay": {"grid": [0.1, 0.2]}, "hooks.ema": ON, "seed": {"choice": [1]}},
        search="grid",
    )
    assert count_points(sweep) == 4
    assert list(make_grid_points(sweep)) == [
        {"seed": 1, "hooks.ema": None},
        {"seed": 1, "hooks.ema": {}, "hooks.ema.decay": 0.1},
        {"seed": 1, "hooks.ema": {}, "hooks.ema.decay": 0.2},
        {"seed": 1, "hooks.ema": {"average": "stochastic", "decay": 0}},
    ]


def test_population_mutates_hook_fields_and_optimizer_numbers() -> None:
    space = {
        "hooks.ema": ON,
        "hooks.ema.decay": {"uniform": [0.1, 0.9]},
        "optimizer.lr": {"loguniform": [0.01, 1]},
        "optimizer.type": {"choice": ["SGD", "Adam"]},
        "batch_size": {"choice": [8, 16]},
    }
    assert list_mutated_paths(of(space, scheduler="pbt", trials=4)) == [
        "hooks.ema.decay",
        "optimizer.lr",
    ]
    assert list_mutated_paths(
        of(space, scheduler={"type": "pbt", "mutate": ["optimizer.lr"]}, trials=4)
    ) == ["optimizer.lr"]
    assert list_mutated_paths(of(space, trials=4)) == []


@pytest.mark.parametrize(
    ("more", "trials"),
    [
        ({"trials": 10}, 10),
        ({"trials": 10, "budget": {"trials": 7}}, 7),
        ({"search": "grid", "repeats": 4}, 3 * 2 * 4),
        ({"repeats": 4}, 2 * 4),
        ({"repeats": 4, "space": {"a": {"uniform": [0, 1]}}}, 4),
    ],
)
def test_number_of_trials_defaults_to_points_times_repeats(
    more: dict[str, Any], trials: int
) -> None:
    space = {"a": {"choice": [1, 2, 3]}, "b": {"grid": [1, 2]}}
    assert count_trials(of(**{"space": space, **more})) == trials


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
