"""The hyperparameters of an experiment and of the trials of a sweep."""

from typing import Any

from hooks.logs.shared.hyperparameters import flatten_config

CONFIG = {
    "name": "digits",
    "seed": 0,
    "optimizer": {"type": "SGD", "lr": 0.1, "nesterov": True},
    "scheduler": None,
    "hooks": {"ema": {"decay": 0.99}, "checkpoint": {"best": ["a", "b"], "out_dir": "/tmp/x"}},
    "sweep": {"metric": "val/accuracy", "space": {"optimizer.lr": {"choice": [1, 2]}}},
}
SPACE = {
    "hooks.ema": {
        "choice": [None, {"average": "exponential"}, {"average": "stochastic", "decay": 0}]
    },
    "hooks.ema.decay": {"choice": [0.5, 0.9]},
    "hooks.checkpoint": {"choice": [None, {"keep": 2}]},
    "optimizer.lr": {"loguniform": [0.01, 0.5]},
}
SWEPT = {
    "hooks.ema",
    "hooks.ema.average",
    "hooks.ema.decay",
    "hooks.checkpoint",
    "hooks.checkpoint.keep",
    "optimizer.lr",
}


def trial(ema: Any, lr: float) -> dict[str, Any]:
    """The config of a trial of SPACE, as hooks get it."""
    return {
        "optimizer": {"lr": lr},
        "hooks": {"ema": ema, "checkpoint": {"keep": 2}},
        "sweep": {"metric": "val/accuracy", "space": SPACE},
    }


def test_all_trials_of_a_sweep_have_the_same_hyperparameters() -> None:
    """TensorBoard does not draw a trial that lacks one of them."""
    on = flatten_config(trial({"average": "stochastic", "decay": 0}, 0.1))
    off = flatten_config(trial(None, 0.2))
    assert on.keys() == off.keys() == SWEPT
    assert on == {
        "hooks.ema": "on",
        "hooks.ema.average": "stochastic",
        "hooks.ema.decay": 0,
        "hooks.checkpoint": "on",
        "hooks.checkpoint.keep": 2,
        "optimizer.lr": 0.1,
    }
    assert off == {
        **on,
        "hooks.ema": "none",
        "hooks.ema.average": "none",
        "hooks.ema.decay": "none",
        "optimizer.lr": 0.2,
    }
