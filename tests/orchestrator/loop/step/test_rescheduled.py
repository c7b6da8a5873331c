"""A run that goes on with another schedule has the rates of that schedule, as if it had begun with
it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler

from hooks import Hook, State
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.optim.scheduler import SCHEDULERS
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Points, described

STEPS = 7
EPOCHS = 4
"""Optimizer steps in an epoch of the task (52 samples in batches of 8), and epochs of the run that
goes on."""
OWN = "tests.orchestrator.loop.step.test_rescheduled:OwnScheduler"
OF_STEPS = "1 step"
OF_EPOCHS = "1 epoch"

OWN_SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda count: 1 / (1 + count)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(
        o, lambda count: 0.9 + 0.01 * count
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.8)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.8)], [2]
    ),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "MultiStepLR": {"milestones": [1, 2, 2, 12], "gamma": 0.5},
    "ConstantLR": {"factor": 0.5, "total_iters": 3},
    "LinearLR": {"start_factor": 0.25},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"eta_min": 0.01},
    "CyclicLR": {"max_lr": 1.0, "step_size_up": 2},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "OneCycleLR": {"pct_start": 0.4},
    "PolynomialLR": {"power": 2.0},
    "SWALR": {"swa_lr": 0.01, "anneal_epochs": 5},
}


@dataclass
class OwnScheduler(Points):
    """Makes one of torch's schedulers that a file cannot describe."""

    def scheduler(self, optimizer: Optimizer, kind: str = "LambdaLR") -> Any:
        return OWN_SCHEDULERS[kind](optimizer)


def of_torch(kind: str, optimizer: Optimizer, length: int) -> Any:
    """The same scheduler without Hookyard."""
    if kind in OWN_SCHEDULERS:
        return OWN_SCHEDULERS[kind](optimizer)
    lengths = {
        "LinearLR": "total_iters",
        "PolynomialLR": "total_iters",
        "CosineAnnealingLR": "T_max",
    }
    lengths["OneCycleLR"] = "total_steps"
    more: dict[str, Any] = {lengths[kind]: length} if kind in lengths else {}
    rate = {"OneCycleLR": {"max_lr": 0.5}, "CyclicLR": {"base_lr": 0.5}}.get(kind, {})
    return SCHEDULERS[kind](optimizer, **{**ARGUMENTS[kind], **more, **rate})


PLACES = (3, 7, 10, 14)
"""Steps to go on from: within epochs, and at their ends."""

Numbers = tuple[float, ...]


class Rates(Hook):
    """Keeps rate and momentum of each step."""

    def __init__(self) -> None:
        self.seen: list[Numbers] = []

    def on_gradients(self, state: State) -> None:
        assert state.optimizer is not None
        group = state.optimizer.param_groups[0]
        self.seen.append((group["lr"], group["momentum"]))


def raw(make: Callable[[Optimizer], Any], every: str) -> list[Numbers]:
    """Rate and momentum of each step of a plain loop."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9, nesterov=True)
    seen = []
    scheduler = make(optimizer)
    for step in range(1, STEPS * EPOCHS + 1):
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["momentum"]))
        optimizer.step()
        if every == OF_STEPS or step % STEPS == 0:
            scheduler.step()
    return seen


def loop_of(
    folder: Path, *, every: str | None = OF_EPOCHS, saves: bool = False, **fields: Any
) -> tuple[Loop, Rates]:
    quiet = {"console": None, "perf_stats": None, "memory_stats": None}
    checkpoint = {"every": "1 step", "keep": None} if saves else None
    hooks: dict[str, Any] = {**quiet, "checkpoint": checkpoint, **fields.pop("hooks", {})}
    if every is not None:
        hooks["param_scheduler"] = {"every": every} if fields.get("scheduler") else {}
    optimizer = {"type": "SGD", "lr": 0.5, "momentum": 0.9, "nesterov": True}
    resolved = resolve(
        described(**{"epochs": EPOCHS, "optimizer": optimizer, "hooks": hooks, **fields}).source
    )
    store = CheckpointStore(Storage(folder))
    rates = Rates()
    loop = Loop(
        resolved.task,
        resolved.experiment,
        {**resolved.hooks, "seen": rates},
        RunContext(store=store),
    )
    return loop, rates


OLD: dict[str, dict[str, Any]] = {
    "none": {},
    "per step": {"scheduler": {"type": "ExponentialLR", "gamma": 0.7}, "every": OF_STEPS},
    "per epoch": {"scheduler": {"type": "StepLR", "step_size": 1, "gamma": 0.3}},
    "warm-up": {"scheduler": {"type": "OneCycleLR", "warmup": "3 steps"}, "every": OF_STEPS},
    "list": {
        "scheduler": [
            {"type": "LinearLR", "end": "4 steps"},
            {"type": "MultiStepLR", "milestones": [1], "begin": 0},
        ],
        "every": None,
    },
    "changes": {"changes": [{"at": "2 steps", "set": {"optimizer.lr": 0.25}}]},
    "by a metric": {
        "scheduler": {"type": "ReduceLROnPlateau", "patience": 0},
        "hooks": {"param_scheduler": {"monitor": "train/loss"}},
        "every": None,
    },
    "task's own": {"task": OWN, "scheduler": {"kind": "ChainedScheduler"}, "every": OF_STEPS},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A run of two epochs with each old schedule, and a checkpoint of each step."""
    folders = {name: tmp_path_factory.mktemp("old") for name in OLD}
    for name, fields in OLD.items():
        list(loop_of(folders[name], **{"epochs": 2, "saves": True, **fields})[0].run())
    return folders


def checkpoint_at(folder: Path, step: int) -> str:
    store = CheckpointStore(Storage(folder))
    return next(
        name for name in store.list_names() if store.read_manifest(name)["position"]["step"] == step
    )


KINDS = [*ARGUMENTS, *OWN_SCHEDULERS]


@pytest.mark.parametrize(("kind", "every"), list(product(KINDS, [OF_STEPS, OF_EPOCHS])))
def test_new_schedule_has_torchs_rates_after_a_resume(
    runs: Mapping[str, Path], kind: str, every: str
) -> None:
    """After a quarter of the old schedules, each at one of its places."""
    scheduler = {"kind": kind} if kind in OWN_SCHEDULERS else {"type": kind, **ARGUMENTS[kind]}
    fields = {"task": OWN} if kind in OWN_SCHEDULERS else {}
    length = STEPS * EPOCHS if every == OF_STEPS else EPOCHS
    expected = raw(lambda optimizer: of_torch(kind, optimizer, length), every)
    first = KINDS.index(kind)
    for number, (old, folder) in enumerate(
        [*runs.items()][(first + 2 * (every == OF_STEPS)) % 4 :: 4], first
    ):
        step = PLACES[number % len(PLACES)]
        loop, rates = loop_of(folder, scheduler=scheduler, every=every, **fields)
        loop.restore(checkpoint_at(folder, step))
        list(loop.run())
        assert rates.seen == expected[step:], (old, step)


LISTS: dict[str, Any] = {
    "warm-up": {"type": "CosineAnnealingLR", "warmup": 1, "warmup_factor": 0.25},
    "one after the other": [{"type": "LinearLR", "end": "6 steps"}, {"type": "CosineAnnealingLR"}],
    "together": [
        {"type": "LinearLR", "end": "9 steps"},
        {"type": "MultiStepLR", "milestones": [1, 3], "begin": 0},
    ],
    "two epochs each": [
        {"type": "ExponentialLR", "gamma": 0.5, "every": 2, "end": 2},
        {"type": "PolynomialLR"},
    ],
    "a rate alone": None,
}
CHANGES = [
    {"at": "9 steps", "set": {"optimizer.lr": 0.3}},
    {"at": "4 steps", "set": {"optimizer.lr": 0.2, "optimizer.momentum": 0.5}},
    {"at": 1, "set": {"optimizer.lr": 0.4}},
    {"at": "17 steps", "set": {"optimizer.lr": 0.1}},
]


@pytest.mark.parametrize("changes", [[], CHANGES], ids=["plain", "with changes"])
@pytest.mark.parametrize(
    ("written", "every"), [*product(LISTS, [None]), *product(["warm-up"], [OF_STEPS])]
)
def test_rates_are_those_of_a_run_that_began_with_the_schedule(
    runs: Mapping[str, Path], tmp_path: Path, written: str, every: str | None, changes: list[Any]
) -> None:
    """With warm-ups, lists and changes in the order of their places, after half of the old
    schedules."""
    new = {"scheduler": LISTS[written], "every": every, "changes": changes}
    whole, expected = loop_of(tmp_path, **new)
    list(whole.run())
    half = [*runs.items()][bool(changes) :: 2]
    for step, (old, folder) in zip(PLACES, half, strict=True):
        loop, rates = loop_of(folder, **new)
        loop.restore(checkpoint_at(folder, step))
        list(loop.run())
        assert rates.seen == [
            pytest.approx(numbers, rel=1e-12) for numbers in expected.seen[step:]
        ], (old, step)
