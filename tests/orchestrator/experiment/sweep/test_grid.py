"""The points of a sweep's grid."""

from orchestrator.experiment.sweep.grid import count_points, make_grid_points
from tests.orchestrator.experiment.sweep.spaces import ON, of


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
