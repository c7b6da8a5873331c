"""Mutations of values from a space."""

import numpy as np

from orchestrator.sweeps.search.drawing import draw
from orchestrator.sweeps.search.mutation import mutate
from tests.orchestrator.sweeps.search.test_drawing import SWITCHED, sweep_over

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
    random = np.random.RandomState(0)
    points = [POINT]
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
    settings = sweep_over(POPULATION, scheduler=scheduler, trials=4)
    random = np.random.RandomState(0)
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
