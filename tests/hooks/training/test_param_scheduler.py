import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from hooks import Hook, Interval, State
from hooks.logs.json_lines import JsonLines
from hooks.state import ScheduledOptimizer
from hooks.training.param_scheduler import ParamScheduler
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.hooks.training.steps import batches, new_state, small_model, train
from tests.tasks import Points, Rows, experiment


def an_optimizer(lr: Any = 0.1) -> Optimizer:
    return SGD(nn.Linear(2, 2).parameters(), lr=lr)


def epochs(
    state: State, hook: ParamScheduler, count: int, iterations: int = 3, accumulate: int = 1
) -> list[Any]:
    """Runs the events of whole epochs; returns the learning rate that each iteration used."""
    hook.on_start(state)
    rates = []
    for _ in range(count):
        state.phase = "train"
        state.epoch_completed = False
        for iteration in range(1, iterations + 1):
            state.stepped = iteration % accumulate == 0
            state.row = {}
            if state.stepped:
                state.optimizer.step()
            state.step += state.stepped
            rates.append(state.optimizer.param_groups[0]["lr"])
            hook.on_step(state)
        state.epoch += 1
        state.epoch_completed = True
        hook.on_phase_end(state)
        state.phase = "val"
        state.row = {}
        state.stepped = False
        hook.on_step(state)
        hook.on_phase_end(state)
        assert state.row == {}
    return rates


def stepped_by_hand(scheduler: Any, count: int, repeat: int) -> list[float]:
    """The learning rate at each iteration where the scheduler steps after every `repeat` of
    them."""
    rates: list[float] = []
    while len(rates) < count:
        rates += [scheduler.get_last_lr()[0]] * repeat
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def test_steps_at_each_epochs_end() -> None:
    optimizer = an_optimizer()
    state = State(optimizer=optimizer, scheduler=CosineAnnealingLR(optimizer, T_max=4))
    expected = stepped_by_hand(CosineAnnealingLR(an_optimizer(), T_max=4), 12, repeat=3)
    assert epochs(state, ParamScheduler(), 4) == expected
    assert len(set(expected)) == 4


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_at_optimizer_steps_and_never_at_micro_batches(accumulate: int) -> None:
    """MMEngine steps its schedulers at every micro-batch."""
    optimizer = an_optimizer()
    state = State(optimizer=optimizer, scheduler=OneCycleLR(optimizer, max_lr=1.0, total_steps=20))
    expected = stepped_by_hand(
        OneCycleLR(an_optimizer(), max_lr=1.0, total_steps=20), 12, repeat=accumulate
    )
    assert epochs(state, ParamScheduler(every=Interval(1, "steps")), 2, 6, accumulate) == expected


def test_skipped_step_does_not_count() -> None:
    state = new_state(small_model())
    state.scheduler = StepLR(state.optimizer, 1, gamma=0.5)

    rates = []

    class SkipSecond(ParamScheduler):
        def on_gradients(self, state: State) -> None:
            rates.append(state.optimizer.param_groups[0]["lr"])
            if state.iteration == 1:
                state.skip_update("test")

    train(state, {"schedule": SkipSecond(every=Interval(1, "steps"))}, batches(4))
    assert rates == [0.1, 0.05, 0.05, 0.025]


def test_reduce_on_plateau_sees_the_metric_of_each_validation() -> None:
    losses = [1.0, 0.9, 0.95, 0.93, 0.92, 0.8, 0.81, 0.82]
    optimizer = an_optimizer()
    reference = an_optimizer()
    expected = ReduceLROnPlateau(reference, patience=1, factor=0.1)
    state = State(
        optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer, patience=1, factor=0.1)
    )
    hook = ParamScheduler(monitor="val/loss")
    hook.on_start(state)
    for loss in losses:
        for state.phase in ("train", "val", "test"):
            state.metrics["val/loss"] = loss
            hook.on_phase_end(state)
        expected.step(loss)
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
    assert reference.param_groups[0]["lr"] < 0.1


def test_missing_metric_error_lists_the_known_metrics() -> None:
    optimizer = an_optimizer()
    state = State(optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer), phase="val")
    state.metrics = {"train/loss": 1.0, "val/accuracy": 0.5}
    with pytest.raises(
        ValueError,
        match=r"monitor: there is no metric 'val/lost'; available: train/loss, val/accuracy",
    ):
        ParamScheduler(monitor="val/lost").on_phase_end(state)


def test_a_monitor_must_fit_the_scheduler() -> None:
    optimizer = an_optimizer()
    with pytest.raises(ValueError, match="ReduceLROnPlateau needs a metric; set monitor"):
        ParamScheduler().on_start(
            State(optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer))
        )
    with pytest.raises(ValueError, match="StepLR takes no metric; remove monitor='val/loss'"):
        ParamScheduler(monitor="val/loss").on_start(
            State(optimizer=optimizer, scheduler=StepLR(optimizer, 1))
        )


@pytest.mark.parametrize("monitor", [None, "val/loss"])
def test_plateau_scheduler_beside_another_is_refused(monitor: str | None) -> None:
    """Neither of them can be mended by `monitor`."""
    first, second = an_optimizer(), an_optimizer()
    several = {
        "first": ScheduledOptimizer(first, StepLR(first, 1)),
        "second": ScheduledOptimizer(second, ReduceLROnPlateau(second)),
    }
    state = State(several=several)
    with pytest.raises(ValueError, match=r"StepLR does not, so one run cannot have both"):
        ParamScheduler(monitor=monitor).on_start(state)


def test_plateau_scheduler_may_stand_beside_one_of_the_user_that_takes_a_metric() -> None:
    optimizer = an_optimizer()
    of_user = Mock(spec=["step"])
    several = {
        "first": ScheduledOptimizer(optimizer, ReduceLROnPlateau(optimizer, patience=0)),
        "second": ScheduledOptimizer(an_optimizer(), of_user),
    }
    state = State(several=several, phase="val")
    hook = ParamScheduler(monitor="val/loss")
    hook.on_start(state)
    state.metrics = {"val/loss": 1.5}
    hook.on_phase_end(state)
    of_user.step.assert_called_once_with(1.5)


def test_plateau_scheduler_with_the_wrong_mode_is_refused() -> None:
    """torch's default lowers the rate of a run whose accuracy rises."""
    optimizer = an_optimizer()
    hook = ParamScheduler(monitor="val/accuracy")
    with pytest.raises(ValueError, match="mode must be max for val/accuracy, got min"):
        hook.on_start(State(optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer)))
    hook.on_start(State(optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer, mode="max")))
    ParamScheduler(monitor="val/score").on_start(
        State(optimizer=optimizer, scheduler=ReduceLROnPlateau(optimizer))
    )


class Reads(Hook):
    """Reads the optimizer's rate and momentum as an iteration and a phase end, at the priority of
    most hooks."""

    def __init__(self) -> None:
        self.iterations: list[float] = []
        self.phases: list[float] = []

    def on_step(self, state: State) -> None:
        self.iterations.append(state.optimizer.param_groups[0]["lr"])

    def on_phase_end(self, state: State) -> None:
        self.phases.append(state.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("interval", [1, 3])
def test_hooks_and_loggers_read_the_rate_that_the_step_used(tmp_path: Path, interval: int) -> None:
    """As in MMEngine, whose scheduler comes after loggers; epochs of seven iterations, and a line
    for the rest."""
    reads = Reads()
    rows = Rows()
    hooks = {
        "schedule": ParamScheduler(every=Interval(1, "steps")),
        "json_lines": JsonLines(every=Interval(interval, "iterations")),
        "reads": reads,
    }
    schedule = Component(type="OneCycleLR", max_lr=1.0, total_steps=20)
    list(
        Loop(
            Points(val=0),
            experiment(epochs=1, scheduler=schedule),
            hooks,
            RunContext(recorder=rows, artifacts=tmp_path),
        ).run()
    )
    used = {row["iteration"]: row["lr"] for row in rows.rows}
    assert len(set(used.values())) == 7
    assert reads.iterations == list(used.values())
    lines = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert {line["iteration"]: line["lr"] for line in lines if "lr" in line} == {
        iteration: rate
        for iteration, rate in used.items()
        if iteration % interval == 0 or iteration == 7
    }
