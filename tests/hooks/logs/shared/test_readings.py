"""What loggers read of a row."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from hooks import Interval, Plan, State
from hooks.logs.console import Console
from hooks.logs.json_lines import JsonLines
from hooks.logs.shared.readings import (
    get_learning_rates,
    read,
    read_numbers,
    select_phase_metrics,
)
from hooks.logs.tensorboard import TensorBoard
from tests.hooks.phases import Screen, run_phase


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
    assert get_learning_rates(State(optimizer=torch.optim.SGD(groups))) == {"lr": 1e-6, "lr_1": 0.5}
    assert get_learning_rates(State()) == {}


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


@pytest.mark.parametrize(
    "convert",
    [
        numpy.float32,
        numpy.float64,
        numpy.int64,
        torch.tensor,
        lambda value: torch.tensor([value]),
        lambda value: torch.tensor(value, dtype=torch.bfloat16),
    ],
)
@pytest.mark.parametrize("make", [Console, JsonLines, TensorBoard])
def test_loggers_read_metrics_of_numpy_and_torch(
    make: type[Console | JsonLines | TensorBoard], convert: Any, tmp_path: Path
) -> None:
    hook = make()
    state = State(artifacts=tmp_path, display=Screen())
    plan = Plan({"logger": hook})
    plan.fire("on_start", state)
    run_phase(hook, state, "val", [], metrics={"val/score": convert(3)})
    plan.fire("on_end", state)
    if make is Console:
        assert isinstance(state.display, Screen)
        assert "score 3  " in state.display.lines[-1]
    elif make is JsonLines:
        assert json.loads((tmp_path / "scalars.jsonl").read_text())["metrics"] == {"val/score": 3}
    else:
        events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
        assert [point.value for point in events.Scalars("val/score")] == [3]


@pytest.mark.parametrize("scalar", [numpy.float32(3), numpy.int64(3), torch.tensor([3.0])])
def test_phase_metrics_that_trackers_send_are_numbers(scalar: Any) -> None:
    state = State(phase="val", metrics={"val/score": scalar, "train/loss": 1.0})
    metrics = select_phase_metrics(state)
    assert metrics == {"val/score": 3.0}
    assert type(metrics["val/score"]) is float
