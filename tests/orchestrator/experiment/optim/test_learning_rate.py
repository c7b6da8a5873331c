"""The rate over a run: default lengths, warm-ups, lists and resumes, beside those of torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler

from hooks import Hook, State
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.orchestrator.experiment.samples import HERE, Own, refusal
from tests.tasks import Points, Rows, described

HOOKS = {"console": None, "perf_stats": None, "memory_stats": None, "checkpoint": None}
BY_STEPS = {"param_scheduler": {"every": "1 step"}}

COSINE = {"type": "CosineAnnealingLR"}

STEPS = 7
"""Optimizer steps in an epoch of the tests' task: 52 samples in batches of 8."""


def loop_of(
    experiment: Experiment, folder: Path | None = None, more: Mapping[str, Hook] | None = None
) -> tuple[Loop, Rows]:
    resolved = resolve(experiment.source)
    rows = Rows()
    store = CheckpointStore(Storage(folder)) if folder else None
    hooks = {**resolved.hooks, **(more or {})}
    context = RunContext(recorder=rows, store=store)
    return Loop(resolved.task, resolved.experiment, hooks, context), rows


def scheduled(
    scheduler: Mapping[str, Any] | None, *, hooks: Mapping[str, Any] = BY_STEPS, **more: Any
) -> Experiment:
    return described(
        **{
            "epochs": 3,
            "scheduler": scheduler,
            "hooks": {**HOOKS, **hooks},
            "optimizer": {"type": "SGD", "lr": 0.5},
            **more,
        }
    )


def rates(experiment: Experiment) -> list[float]:
    """Return the rate of each optimizer step."""
    loop, rows = loop_of(experiment)
    list(loop.run())
    return [lr for (lr,) in rows.columns("lr", phase="train")]


def by_hand(make: Any, periods: int, each: int = 1) -> list[float]:
    """Return the rate of each optimizer step under a scheduler of torch that steps after every
    `each` of them."""
    optimizer: Optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = make(optimizer)
    seen: list[float] = []
    for _ in range(periods):
        seen += [optimizer.param_groups[0]["lr"]] * each
        optimizer.step()
        scheduler.step()
    return seen


# The length


@pytest.mark.parametrize(
    ("written", "make"),
    [
        ({"type": "CosineAnnealingLR"}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=21)),
        ({"type": "OneCycleLR"}, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=21)),
        (
            {"type": "OneCycleLR", "epochs": 4, "steps_per_epoch": 7},
            lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=28),
        ),
        (
            {"type": "CyclicLR", "max_lr": 1.0, "step_size_up": 3},
            lambda o: lr_scheduler.CyclicLR(o, base_lr=0.5, max_lr=1.0, step_size_up=3),
        ),
        (
            {"type": "LinearLR", "start_factor": 1, "end_factor": 0},
            lambda o: lr_scheduler.LinearLR(o, 1, 0, total_iters=21),
        ),
    ],
)
def test_length_defaults_to_that_of_the_run(written: Mapping[str, Any], make: Any) -> None:
    assert rates(scheduled(written)) == by_hand(make, 21)


@pytest.mark.parametrize(
    ("length", "every", "accumulate", "periods", "each"),
    [
        ({"epochs": 3}, "1 epoch", 1, 3, STEPS),
        ({"epochs": 3}, "2 epochs", 1, 2, 2 * STEPS),  # the second pair of epochs is cut short
        ({"epochs": 3}, "1 step", 2, 3 * 4, 1),  # 7 batches are 3 steps of 2 and one of 1
        ({"steps": 12}, "1 step", 1, 12, 1),
        ({"steps": 12}, "5 steps", 1, 3, 5),
        ({"steps": 16}, "1 epoch", 1, 3, STEPS),  # two epochs and a part of the third
    ],
)
def test_default_length_is_in_steps_of_the_scheduler(
    length: Mapping[str, Any], every: str, accumulate: int, periods: int, each: int
) -> None:
    experiment = scheduled(
        {"type": "CosineAnnealingLR"},
        hooks={"param_scheduler": {"every": every}},
        accumulate=accumulate,
        **{"epochs": None, **length},
    )
    seen = Rates()
    loop, _ = loop_of(experiment, more={"seen": seen})
    list(loop.run())
    expected = by_hand(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=periods), periods, each)
    assert seen.rates == expected[: len(seen.rates)]
    assert len(seen.rates) > len(expected) - each


class Rates(Hook):
    """Notes the rate of each optimizer step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_gradients(self, state: State) -> None:
        assert state.optimizer is not None
        self.rates.append(state.optimizer.param_groups[0]["lr"])


# A list


@pytest.mark.parametrize(
    ("written", "make"),
    [
        (
            [
                {"type": "LinearLR", "start_factor": 0.1, "end": "5 steps"},
                {"type": "CosineAnnealingLR", "eta_min": 0.01},
            ],
            lambda o: lr_scheduler.SequentialLR(
                o,
                [
                    lr_scheduler.LinearLR(o, 0.1, total_iters=5),
                    lr_scheduler.CosineAnnealingLR(o, T_max=16, eta_min=0.01),
                ],
                [5],
            ),
        ),
        (
            [
                {"type": "StepLR", "step_size": 2, "begin": "0 steps", "every": "1 step"},
                {"type": "ExponentialLR", "gamma": 0.9, "begin": 0, "every": "1 step"},
            ],
            lambda o: lr_scheduler.ChainedScheduler(
                [lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.9)]
            ),
        ),
        (
            [
                {"type": "ConstantLR", "factor": 0.5, "end": "4 steps"},
                {"type": "LinearLR", "end": "9 steps"},
                {"type": "CosineAnnealingWarmRestarts", "T_0": 3},
            ],
            lambda o: lr_scheduler.SequentialLR(
                o,
                [
                    lr_scheduler.ConstantLR(o, 0.5, 4),
                    lr_scheduler.LinearLR(o, total_iters=5),
                    lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
                ],
                [4, 9],
            ),
        ),
    ],
)
def test_list_equals_sequential_and_chained_schedulers_of_torch(written: Any, make: Any) -> None:
    assert rates(scheduled(written, hooks={})) == by_hand(make, 21)


class Betas(Hook):
    """Keeps the first beta at each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_gradients(self, state: State) -> None:
        assert state.optimizer is not None
        self.seen.append(state.optimizer.param_groups[0]["betas"][0])


def test_a_later_scheduler_of_a_list_does_not_set_the_momentum_before() -> None:
    written: Any = [
        {"type": "ConstantLR", "factor": 1.0, "end": "4 steps"},
        {"type": "OneCycleLR", "max_lr": 0.1, "total_steps": 17},
    ]
    optimizer = {"type": "Adam", "lr": 0.1, "betas": [0.8, 0.999]}
    betas = Betas()
    loop, _ = loop_of(scheduled(written, optimizer=optimizer), more={"betas": betas})
    list(loop.run())

    by_hand_optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], betas=(0.8, 0.999))
    cycle = lr_scheduler.OneCycleLR(by_hand_optimizer, max_lr=0.1, total_steps=17)
    expected = [0.8] * 4
    for _ in range(17):
        expected.append(by_hand_optimizer.param_groups[0]["betas"][0])
        by_hand_optimizer.step()
        if cycle.last_epoch < 16:
            cycle.step()
    assert betas.seen == pytest.approx(expected)


def test_schedulers_of_a_list_have_own_intervals_and_keep_the_rate_in_gaps() -> None:
    """MMDetection's: a rise over the first steps, times factors by epochs; and a gap, over which
    the rate stays."""
    written = [
        {"type": "LinearLR", "start_factor": 0.5, "end": "4 steps"},
        {"type": "MultiStepLR", "milestones": [1, 2], "begin": 0},
    ]
    assert rates(scheduled(written, hooks={})) == pytest.approx(
        [0.25, 0.3125, 0.375, 0.4375, *[0.5] * 3, *[0.05] * 7, *[0.005] * 7]
    )
    written = [
        {"type": "LinearLR", "start_factor": 1, "end_factor": 0.5, "end": 1},
        {"type": "StepLR", "step_size": 1, "begin": 2},
    ]
    assert rates(scheduled(written, hooks={})) == pytest.approx([0.5] * 7 + [0.25] * 7 + [0.5] * 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"scheduler": [{"type": "LinearLR"}, COSINE]},
            r"scheduler\.1: needs a begin, as the scheduler before it",
        ),
        (
            {"scheduler": [{"type": "LinearLR", "end": 2}, {**COSINE, "begin": 1}]},
            r"scheduler\.1: begins after 1",
        ),
        (
            {"scheduler": [{**COSINE, "begin": 1}, {"type": "LinearLR", "begin": 0, "end": 2}]},
            r"scheduler\.0: begins after 1",
        ),
        (
            {"scheduler": [{**COSINE, "begin": 3}]},
            r"scheduler\.0: must begin before the end at 3 epochs, got 3",
        ),
        (
            {"scheduler": [{**COSINE, "begin": 2, "end": 1}]},
            r"scheduler\.0: begins after 2 epochs, but ends after",
        ),
        ({"scheduler": [{**COSINE, "every": 0}]}, r"scheduler\.0\.every: must be at least 1 epoch"),
        ({"scheduler": [{**COSINE, "warmup": 1}]}, r"scheduler\.0\.warmup: unknown key"),
        ({"scheduler": [{"type": "ReduceLROnPlateau"}]}, r"scheduler\.0: cannot be in a list"),
        (
            {
                "scheduler": [{**COSINE, "end": "5 steps"}],
                "hooks": {"param_scheduler": {"every": 2}},
            },
            r"hooks\.param_scheduler\.every: must be 1 step for a list of schedulers",
        ),
    ],
)
def test_invalid_list_of_schedulers_is_refused(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(**{"epochs": 3, **change})


# The warm-up


def after(warm: int, factor: float, make: Any) -> Any:
    """Return a function that builds a linear warm-up of torch before another scheduler."""

    def made(optimizer: Optimizer) -> lr_scheduler.SequentialLR:
        rising = lr_scheduler.LinearLR(optimizer, factor, total_iters=warm)
        return lr_scheduler.SequentialLR(optimizer, [rising, make(optimizer)], [warm])

    return made


@pytest.mark.parametrize(
    ("written", "make"),
    [
        (
            {"type": "CosineAnnealingLR", "warmup": "5 steps"},
            after(5, 0.001, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=16)),
        ),
        (
            {"type": "CosineAnnealingLR", "T_max": 21, "warmup": "5 steps"},
            after(5, 0.001, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=16)),
        ),
        (
            {"type": "CosineAnnealingLR", "warmup": "1 epoch", "warmup_factor": 0.25},
            after(7, 0.25, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=14)),
        ),
        (
            {"type": "MultiStepLR", "milestones": [8, 16], "warmup": "5 steps"},
            after(5, 0.001, lambda o: lr_scheduler.MultiStepLR(o, [3, 11])),
        ),
        (
            {"type": "CosineAnnealingLR", "warmup": 0},
            lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=21),
        ),
    ],
)
def test_warmup_equals_linear_then_sequential_of_torch(
    written: Mapping[str, Any], make: Any
) -> None:
    assert rates(scheduled(written)) == by_hand(make, 21)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"scheduler": {**COSINE, "warmup": "5 iterations"}},
            "scheduler.warmup: must be a number of epochs",
        ),
        (
            {"scheduler": {**COSINE, "warmup_factor": 0.5}},
            "scheduler.warmup_factor: has no effect without `warmup`",
        ),
        (
            {"scheduler": {**COSINE, "warmup": 3}},
            "scheduler.warmup: must be shorter than the run of 3 epochs",
        ),
        (
            {"scheduler": {**COSINE, "warmup": "5 steps"}},
            "scheduler.warmup: must be in epochs, because",
        ),
        (
            {"scheduler": {"type": "MultiStepLR", "milestones": [1, 2], "warmup": 1}},
            "scheduler.milestones: counts",
        ),
        (
            {"scheduler": {**COSINE, "T_max": 2, "warmup": 2}},
            "must be an integer greater than the warm-up of 2, got 2",
        ),
        (
            {"scheduler": {**COSINE, "T_max": 8.0, "warmup": 2}},
            "scheduler.T_max: must be an integer, got 8.0",
        ),
        (
            {"scheduler": {**COSINE, "T_max": 0, "warmup": 1}},
            "scheduler.T_max: must be greater than 0, got 0",
        ),
        (
            {"scheduler": {"type": "MultiStepLR", "milestones": [2, "3"], "warmup": 1}},
            "scheduler.milestones.1: must be an integer, got '3'",
        ),
        (
            {
                "scheduler": {"type": "ReduceLROnPlateau", "warmup": 1},
                "hooks": {"param_scheduler": {"monitor": "val/loss"}},
            },
            "scheduler.warmup: cannot be combined with ReduceLROnPlateau",
        ),
    ],
)
def test_warmup_that_does_not_fit_is_refused(more: Mapping[str, Any], message: str) -> None:
    assert message in refusal(**more)


def test_warmup_can_be_swept() -> None:
    space = {
        "scheduler.warmup": {"grid": [0, 1, "2 epochs"]},
        "scheduler.type": {"grid": ["CosineAnnealingLR", "PolynomialLR"]},
    }
    sweep = {"metric": "train/loss", "mode": "min", "search": "grid", "space": space}
    described(epochs=3, scheduler={**COSINE, "warmup_factor": 0.1, "warmup": 1}, sweep=sweep)
    space["scheduler.warmup"]["grid"].append(3)
    with pytest.raises(
        ConfigError,
        match=r"sweep\.space\.scheduler\.warmup: must be shorter than the run of 3 epochs",
    ):
        described(epochs=3, scheduler={**COSINE, "warmup": 1}, sweep=sweep)


def test_scheduler_of_the_task_can_have_a_warmup() -> None:
    own = make_experiment(
        {
            "name": "own",
            "task": f"{HERE}:Own",
            "epochs": 9,
            "scheduler": {"gamma": 0.25, "warmup": 2},
        }
    )
    loop, _ = loop_of(own)
    scheduler: Any = loop.state.scheduler
    assert isinstance(loop.task, Own)
    assert [type(inner).__name__ for inner in scheduler._schedulers] == ["LinearLR", "StepLR"]
    assert scheduler._schedulers[1].gamma == 0.25


class OwnCosine(Points):
    """Its schedule has a length that it does not choose."""

    def scheduler(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> Any:
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max, eta_min)


@pytest.mark.parametrize("written", [{"eta_min": 0.1}, {"eta_min": 0.1, "T_max": None}])
def test_length_of_the_tasks_scheduler_defaults_to_that_of_the_run(
    written: Mapping[str, Any],
) -> None:
    experiment = scheduled(written, task=f"{__name__}:OwnCosine")
    expected = by_hand(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=21, eta_min=0.1), 21)
    assert rates(experiment) == expected


class Unscheduled(Points):
    def scheduler(self, optimizer: Optimizer) -> None:
        return None


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"warmup": 1}, "scheduler"),
        ([{"type": "LinearLR", "end": 1}, {"type": "task"}], r"scheduler\.1"),
    ],
)
def test_warmup_before_a_task_without_a_scheduler_is_refused(written: Any, path: str) -> None:
    experiment = scheduled(written, hooks={}, task=f"{__name__}:Unscheduled")
    message = rf"{path}: needs a scheduler .* but Unscheduled\.scheduler\(\) returned None"
    with pytest.raises(ConfigError, match=message):
        loop_of(experiment)


# Resumed


def kept(written: Mapping[str, Any], folder: Path, **more: Any) -> Loop:
    loop, _ = loop_of(
        scheduled(written, hooks={**BY_STEPS, "checkpoint": {"every": 1, "keep": None}}, **more),
        folder,
    )
    return loop


def test_longer_resumed_run_follows_the_longer_schedule(tmp_path: Path) -> None:
    written = {"type": "CosineAnnealingLR", "warmup": "5 steps"}
    list(kept(written, tmp_path).run())
    again: Any = kept(written, tmp_path)
    again.restore("epoch-0002")
    assert again.state.scheduler.get_last_lr() == [again.state.optimizer.param_groups[0]["lr"]]
    loop, rows = loop_of(scheduled(written, hooks=BY_STEPS, epochs=6), tmp_path)
    loop.restore("epoch-0003")
    list(loop.run())
    whole = by_hand(after(5, 0.001, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=37)), 42)
    assert [lr for (lr,) in rows.columns("lr", phase="train")] == whole[21:]


def test_change_of_the_rate_scales_the_schedule_after_warmup() -> None:
    change = [{"at": "3 steps", "set": {"optimizer.lr": 0.25}}]
    plain, halved = (
        rates(scheduled({**COSINE, "warmup": "5 steps"}, changes=changes))
        for changes in ([], change)
    )
    assert halved == pytest.approx([*plain[:3], *(rate / 2 for rate in plain[3:])])
