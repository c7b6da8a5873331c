"""Settings that change while a run goes on: at their step, within their bounds, through
checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from hooks import Hook, State
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.orchestrator.experiment.samples import HERE
from tests.tasks import Points, Rows, described, numbers

QUIET = {"console": None, "perf_stats": None, "memory_stats": None}


def changing(changes: list[Mapping[str, Any]], **fields: Any) -> Experiment:
    hooks = {
        **QUIET,
        "checkpoint": None,
        "gradient_clip": {"max_norm": 0.5},
        "ema": {"decay": 0.9},
        **fields.pop("hooks", {}),
    }
    return described(**{"epochs": 3, "changes": changes, "hooks": hooks, **fields})


def made(
    experiment: Experiment, folder: Path | None = None, more: Mapping[str, Hook] | None = None
) -> tuple[Loop, Rows]:
    task = resolve(experiment.source).task
    rows = Rows()
    store = CheckpointStore(Storage(folder)) if folder else None
    hooks = {**resolve(experiment.source).hooks, **(more or {})}
    return Loop(task, experiment, hooks, RunContext(recorder=rows, store=store)), rows


class Watch(Hook):
    """Notes the settings that each iteration ran with."""

    def __init__(self, loop: list[Loop]) -> None:
        self.loop = loop
        self.seen: list[tuple[int, float, float, float]] = []

    def on_gradients(self, state: State) -> None:
        hooks: dict[str, Any] = self.loop[0].training.plan.hooks
        assert state.optimizer is not None
        group = state.optimizer.param_groups[0]
        self.seen.append(
            (state.step + 1, hooks["ema"].decay, hooks["gradient_clip"].max_norm, group["lr"])
        )


def watched(experiment: Experiment) -> list[tuple[int, float, float, float]]:
    box: list[Loop] = []
    watch = Watch(box)
    loop, _ = made(experiment, more={"watch": watch})
    box.append(loop)
    list(loop.run())
    return watch.seen


def test_change_applies_from_the_iteration_after_its_step_or_epoch() -> None:
    """52 samples in batches of 8 are 7 steps an epoch."""
    changes = [
        {"at": "3 steps", "set": {"hooks.ema.decay": 0.5, "optimizer.lr": 0.2}},
        {"at": 1, "set": {"hooks.gradient_clip.max_norm": 2.0}},
        {"at": "2 epochs", "set": {"optimizer.lr": 0.05, "hooks.ema.decay": 0.25}},
    ]
    for step, decay, norm, lr in watched(changing(changes)):
        assert decay == (0.9 if step <= 3 else 0.5 if step <= 14 else 0.25)
        assert norm == (0.5 if step <= 7 else 2.0)
        assert lr == (0.1 if step <= 3 else 0.2 if step <= 14 else 0.05)


def test_fields_change_together_and_from_what_they_were_changed_to() -> None:
    band = {"type": f"{HERE}:Band", "low": 0.0, "high": 1.0}
    changes = [
        {"at": 1, "set": {"hooks.band.low": 5.0, "hooks.band.high": 10.0}},
        {"at": 2, "set": {"hooks.band.low": 7.0}},
    ]
    loop, _ = made(changing(changes, hooks={"band": band}))
    list(loop.run())
    hook: Any = loop.training.plan.hooks["band"]
    assert (hook.low, hook.high) == (7.0, 10.0)


def averaged(ema: Any, loop: Loop) -> Any:
    with ema.applied(loop.state):
        return numbers(loop.state.module)


def again_from(name: str) -> int:
    """The step of a checkpoint of an experiment with 7 steps an epoch."""
    kind, number = name.split("-")
    return int(number) * (7 if kind == "epoch" else 1)


CHANGES = [
    {"at": "3 steps", "set": {"optimizer.lr": 0.2, "hooks.ema.decay": 0.5}},
    {"at": 1, "set": {"optimizer.lr": 0.02}},
    {"at": "10 steps", "set": {"hooks.gradient_clip.max_norm": 0.1, "optimizer.lr": 0.1}},
]


@pytest.mark.parametrize("every", ["3 steps", "5 steps"])
def test_resume_from_any_checkpoint_is_bit_for_bit(tmp_path: Path, every: str) -> None:
    """Changes fall right at checkpoints, between them, and before and after the place of the
    resume."""
    hooks = {"checkpoint": {"every": every, "keep": None}}
    experiment = changing(CHANGES, hooks=hooks, scheduler={"type": "ExponentialLR", "gamma": 0.5})
    whole, rows = made(experiment, tmp_path)
    list(whole.run())
    expected = numbers(whole.state.module)
    names = CheckpointStore(Storage(tmp_path)).list_names()
    assert len(names) >= 3
    for name in names:
        again, later = made(experiment, tmp_path)
        again.restore(name)
        list(again.run())
        assert numbers(again.state.module) == expected
        losses = rows.columns("step", "loss", phase="train")
        assert later.columns("step", "loss", phase="train") == losses[again_from(name) :]


def test_checkpoint_restored_with_another_rate_trains_as_if_the_rate_changed_there(
    tmp_path: Path,
) -> None:
    """What population-based training does, and what `changes` does in a single run, is the same to
    the last bit."""
    hooks = {"checkpoint": {"every": 1, "keep": None}}
    cosine = {"type": "CosineAnnealingLR", "T_max": 3}
    first, _ = made(changing([], hooks=hooks, scheduler=cosine, epochs=3), tmp_path)
    list(first.run())
    other = changing(
        [],
        hooks={**hooks, "ema": {"decay": 0.5}},
        scheduler=cosine,
        optimizer={"type": "SGD", "lr": 0.03, "momentum": 0.9},
    )
    taken, _ = made(other, tmp_path)
    taken.restore("epoch-0001")
    list(taken.run())
    replayed, _ = made(
        changing(
            [{"at": "7 steps", "set": {"optimizer.lr": 0.03, "hooks.ema.decay": 0.5}}],
            hooks=hooks,
            scheduler=cosine,
        ),
        tmp_path / "b",
    )
    list(replayed.run())
    assert numbers(taken.state.module) == numbers(replayed.state.module)
    ema, same = (loop.runs[0].plan.hooks["ema"] for loop in (taken, replayed))
    assert averaged(ema, taken) == averaged(same, replayed)
    undisturbed, _ = made(changing([], hooks=hooks, scheduler=cosine), tmp_path / "c")
    list(undisturbed.run())
    assert numbers(undisturbed.state.module) != numbers(replayed.state.module)


@dataclass
class OwnOptimizer(Points):
    """Weights and biases have rates of their own, the biases' in proportion to two arguments."""

    calls: int = 0

    def optimizer(
        self,
        model: nn.Module,
        lr: float = 0.1,
        bias_factor: float = 2.0,
        spare: int = 1,
        unused: int = 0,
        weight_decay: float = 0.0,
    ) -> SGD:
        self.calls += 1
        weights, biases = (
            [p for n, p in model.named_parameters() if kind in n] for kind in ("weight", "bias")
        )
        return SGD(
            [{"params": weights, "lr": lr}, {"params": biases, "lr": lr * bias_factor}],
            lr=7.0,
            momentum=0.9,
            weight_decay=weight_decay,
        )


OWN: dict[str, Any] = {
    "task": "tests.orchestrator.loop.step.test_changes:OwnOptimizer",
    "optimizer": {},
}


def rates(loop: Loop) -> list[float]:
    assert loop.state.optimizer is not None
    return [group["lr"] for group in loop.state.optimizer.param_groups]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("unused", 2, "optimizer.unused: is no key of this optimizer's parameter groups"),
        ("spare", 2, "optimizer.spare: is no key of this optimizer's parameter groups"),
        ("bias_factor", 3, "optimizer.bias_factor: is no key of this optimizer's parameter groups"),
        ("weight_decay", 0.1, "optimizer.weight_decay: cannot change from 0.0, because all groups"),
    ],
)
def test_argument_of_unknown_effect_on_a_tasks_optimizer_is_refused(
    key: str, value: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        made(changing([{"at": 2, "set": {f"optimizer.{key}": value}}], **OWN))


def test_rates_of_a_tasks_optimizer_change_by_one_factor_without_another_call() -> None:
    """Another call would register hooks of the optimizer's parameters a second time."""
    loop = made(changing([{"at": 1, "set": {"optimizer.lr": 0.05}}], **OWN))[0]
    list(loop.run())
    task: Any = loop.training.task
    assert task.calls == 1
    assert rates(loop) == [0.05, 0.1]


def test_resumed_tasks_optimizer_has_the_rates_that_its_method_now_returns(tmp_path: Path) -> None:
    """The schedule has halved the rates twice by then, and a change before has halved them, too."""
    own = {
        **OWN,
        "scheduler": {"type": "ExponentialLR", "gamma": 0.5},
        "hooks": {"checkpoint": {"every": 1, "keep": None}},
    }
    changes = [{"at": 1, "set": {"optimizer.lr": 0.05}}]
    list(made(changing(changes, **own), tmp_path)[0].run())
    again = made(changing(changes, **{**own, "optimizer": {"bias_factor": 3.0}}), tmp_path)[0]
    again.restore("epoch-0002")
    assert rates(again) == pytest.approx([0.05 / 4, 0.15 / 4])
    unchanged = made(changing([], **{**own, "optimizer": {"lr": 0.2}}), tmp_path)[0]
    unchanged.restore("epoch-0002")
    assert rates(unchanged) == pytest.approx([0.2 / 4, 0.4 / 4])


class Rates(Hook):
    """Notes the rate of each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_gradients(self, state: State) -> None:
        assert state.optimizer is not None
        self.seen.append(state.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    "scheduler",
    [
        {"type": "CyclicLR", "max_lr": 1.0, "step_size_up": 3},
        {"type": "CosineAnnealingLR", "eta_min": 0.05},
        {"type": "CosineAnnealingWarmRestarts", "T_0": 3, "eta_min": 0.05},
        {"type": "OneCycleLR"},
        {"type": "SWALR", "swa_lr": 0.02},
        [{"type": "LinearLR", "end": "6 steps"}, {"type": "CosineAnnealingLR", "eta_min": 0.05}],
    ],
    ids=lambda scheduler: scheduler["type"] if isinstance(scheduler, dict) else "list",
)
def test_changed_rate_scales_the_whole_schedule(scheduler: Any) -> None:
    """Also its upper and lower ends. The new rate is a tenth of the old one."""
    change = {"at": "4 steps", "set": {"optimizer.lr": 0.01}}
    seen = []
    for changes in ([], [change]):
        watch = Rates()
        hooks = {"param_scheduler": {"every": "1 step"}}
        optimizer = {"type": "SGD", "lr": 0.1}
        loop, _ = made(
            changing(changes, scheduler=scheduler, hooks=hooks, optimizer=optimizer),
            more={"watch": watch},
        )
        list(loop.run())
        seen.append(watch.seen)
    whole, changed = seen
    assert len(whole) == 21
    assert changed == pytest.approx([*whole[:4], *(rate / 10 for rate in whole[4:])])


def test_changed_rate_scales_the_lowest_rate_of_a_scheduler_that_steps_by_a_metric() -> None:
    scheduler = {"type": "ReduceLROnPlateau", "min_lr": 0.05}
    hooks = {"param_scheduler": {"monitor": "train/loss"}}
    changes = [{"at": 1, "set": {"optimizer.lr": 0.01}}]
    optimizer = {"type": "SGD", "lr": 0.1}
    loop, _ = made(changing(changes, scheduler=scheduler, hooks=hooks, optimizer=optimizer))
    list(loop.run())
    lowest: Any = loop.state.scheduler
    assert lowest.min_lrs == pytest.approx([0.005])


@pytest.mark.parametrize("lowest", [0, 0.01])
def test_rate_that_changes_from_zero_leaves_the_lowest_rate_of_its_scheduler(
    lowest: float,
) -> None:
    scheduler = {"type": "ReduceLROnPlateau", "min_lr": lowest}
    hooks = {"param_scheduler": {"monitor": "train/loss"}}
    changes = [{"at": 1, "set": {"optimizer.lr": 0.1}}]
    optimizer = {"type": "SGD", "lr": 0}
    loop, _ = made(changing(changes, scheduler=scheduler, hooks=hooks, optimizer=optimizer))
    list(loop.run())
    plateau: Any = loop.state.scheduler
    assert plateau.min_lrs == [lowest]
    assert rates(loop) == [0.1]


def test_rate_that_changes_from_zero_leaves_the_highest_rate_of_its_scheduler() -> None:
    scheduler = {"type": "CyclicLR", "max_lr": 1.0, "cycle_momentum": False}
    changes = [{"at": 1, "set": {"optimizer.lr": 0.1}}]
    loop, _ = made(changing(changes, scheduler=scheduler, optimizer={"type": "SGD", "lr": 0}))
    list(loop.run())
    cycle: Any = loop.state.scheduler
    assert cycle.base_lrs == [0.1]
    assert cycle.max_lrs == [1.0]


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
@pytest.mark.parametrize("cycle_momentum", [True, False])
def test_change_of_a_momentum_that_the_scheduler_sets_is_refused(
    kind: str, cycle_momentum: bool
) -> None:
    scheduler = {"type": kind, "max_lr": 1.0, "cycle_momentum": cycle_momentum}
    optimizer = {"type": "SGD", "momentum": 0.9}
    changes = [{"at": 1, "set": {"optimizer.momentum": 0.5}}]
    if cycle_momentum:
        with pytest.raises(
            ConfigError, match=rf"changes\.0\.set\.optimizer\.momentum: .* {kind} sets"
        ):
            changing(changes, scheduler=scheduler, optimizer=optimizer)
        return

    loop, _ = made(changing(changes, scheduler=scheduler, optimizer=optimizer))
    list(loop.run())
    assert loop.state.optimizer is not None
    assert loop.state.optimizer.param_groups[0]["momentum"] == 0.5


def test_change_to_the_default_that_was_not_written_is_accepted() -> None:
    written = {"type": "AdamW", "lr": 0.01}
    changes = [
        {"at": 1, "set": {"optimizer.weight_decay": 0.01}},
        {"at": 2, "set": {"optimizer.weight_decay": 0.1}},
    ]
    loop = made(changing(changes, optimizer=written))[0]
    list(loop.run())
    assert loop.state.optimizer is not None
    assert loop.state.optimizer.param_groups[0]["weight_decay"] == 0.1


@dataclass
class Layers(Points):
    """Three layers of which two have parameters of the same shapes."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))


def test_resume_with_other_parameters_in_a_group_is_refused(tmp_path: Path) -> None:
    def make(match: str) -> Loop:
        optimizer = {"type": "SGD", "lr": 0.01, "momentum": 0.9}
        groups = [{"match": match, "weight_decay": 0.01}]
        settings = described(epochs=1, optimizer={**optimizer, "groups": groups})
        context = RunContext(store=CheckpointStore(Storage(tmp_path)))
        return Loop(Layers(), settings, {"checkpoint": Checkpoint()}, context)

    list(make("0.*").run())
    make("0.*").restore("epoch-0001")
    with pytest.raises(
        CheckpointError, match=r"has other parameters .*\b0\.bias, 0\.weight, 1\.bias"
    ):
        make("1.*").restore("epoch-0001")


def test_resume_with_another_optimizer_is_refused(tmp_path: Path) -> None:
    hooks = {"checkpoint": {"every": 1}}
    list(made(changing([], hooks=hooks), tmp_path)[0].run())
    with pytest.raises(
        CheckpointError, match="was made with the optimizer SGD and cannot continue with Adam"
    ):
        made(changing([], hooks=hooks, optimizer={"type": "Adam"}), tmp_path)[0].restore(
            "epoch-0003"
        )


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("hooks.ema.decay", 1.2, "changes.0.set.hooks.ema.decay: must be less than 1, got 1.2"),
        (
            "hooks.ema.buffers",
            "ema",
            "hooks.ema.buffers: cannot change during training; the mutable fields of 'ema' are: decay, every, gamma",
        ),
        ("hooks.emma.decay", 0.5, "changes.0.set.hooks.emma.decay: there is no active hook 'emma'"),
        ("hooks.checkpoint.keep", 1, "there is no active hook 'checkpoint'"),
        ("hooks.ema", None, "changes.0.set.hooks.ema: cannot change during training"),
        (
            "batch_size",
            4,
            "changes.0.set.batch_size: cannot change during training; only fields of hooks and numbers of",
        ),
        ("optimizer.type", "Adam", "changes.0.set.optimizer.type: cannot change during training"),
        ("optimizer.lr", -1, "changes.0.set.optimizer.lr: SGD raised: Invalid learning rate: -1"),
        ("optimizer.lrr", 1, "changes.0.set.optimizer.lrr: unknown key"),
    ],
)
def test_invalid_change_is_refused_before_training(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changing([{"at": 1, "set": {path: value}}])
    assert said in str(caught.value)
