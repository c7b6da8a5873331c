"""What loggers read of a row."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from hooks import Interval, Plan, State
from hooks.logs.console import Console
from hooks.logs.json_lines import JsonLines
from hooks.logs.shared.readings import flatten, learning_rates, read, read_numbers
from hooks.logs.tensorboard import TensorBoard
from tests.hooks.phases import Screen


def test_numbers_are_kept_and_tensors_read_exactly() -> None:
    big = 2**53 - 1
    columns = {
        "a": 3,
        "b": 0.1,
        "c": torch.tensor(big),
        "d": torch.tensor([0.5]),
        "e": numpy.float32(0.25),
        "f": True,
    }
    read = read_numbers(columns)
    assert read == {"a": 3, "b": 0.1, "c": float(big), "d": 0.5, "e": 0.25, "f": True}
    assert type(read["a"]) is int
    assert list(read) == list(columns)


class _Span:
    """A time measured on the device."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def ready(self) -> bool:
        return self.seconds is not None

    def resolve(self) -> float:
        assert self.seconds is not None, "nobody may wait for the device"
        return self.seconds


def test_times_on_the_device_are_read_only_if_they_are_there() -> None:
    assert read([1, _Span(0.5), torch.tensor(2.0), _Span(None), "text"]) == [
        1,
        0.5,
        2.0,
        None,
        None,
    ]


def test_each_parameter_group_has_its_learning_rate() -> None:
    groups = [
        {"params": nn.Linear(1, 1).parameters(), "lr": rate} for rate in (1e-6, torch.tensor(0.5))
    ]
    assert learning_rates(State(optimizer=torch.optim.SGD(groups))) == {"lr": 1e-6, "lr_1": 0.5}
    assert learning_rates(State()) == {}


@pytest.mark.parametrize("logger", [Console, JsonLines, TensorBoard])
def test_loggers_read_tensors_only_where_they_write(logger: Any, tmp_path: Path) -> None:
    """A meta tensor cannot be read, and on CUDA each reading would wait for the device."""
    hook = logger(every=Interval(3, "iterations"))
    state = State(display=Screen(), artifacts=tmp_path)
    hook.on_start(state)
    plan = Plan({"hook": hook})
    state.phase = "train"
    state.row = {"loss": torch.zeros((), device="meta")}
    for state.phase_iteration in (1, 2):
        plan.fire("on_step", state)
    state.phase_iteration = 3
    with pytest.raises(Exception, match="meta"):
        plan.fire("on_step", state)
    hook.on_exception(state, KeyboardInterrupt())


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
    on = flatten(trial({"average": "stochastic", "decay": 0}, 0.1))
    off = flatten(trial(None, 0.2))
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
