"""Several optimizers that take turns, beside GANs written by hand with torch alone."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.stats.perf_stats import PerfStats
from hooks.training.gradient_clip import GradientClip
from hooks.training.nan_guard import NanGuard
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError, ConfigError, TaskError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, Rows, experiment, numbers

STEP = Interval(1, "steps")
SAMPLES = 44
BATCH = 6


class Pair(nn.Module):
    """A generator of points and what tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)
        )
        self.critic = nn.Sequential(
            nn.Linear(5, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1)
        )


@dataclass
class Gan(Points):
    """A GAN over points."""

    train: int = SAMPLES
    order: str = "dg"
    by_method: bool = False

    def model(self) -> nn.Module:
        return Pair()

    def data(self) -> Any:
        return {"train": PointSet(self.train, False, 0)}

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
        for turn in self.order_now():
            fake = model.generator(torch.randn(len(batch[0]), 2))
            if turn == "d":
                yield "d", of_critic(model.critic(batch[0]), model.critic(fake.detach()))
            else:
                yield turn, functional.softplus(-model.critic(fake)).mean()

    def order_now(self) -> str:
        """Return the turns of the micro-batch under way: `order` has those of each, which come
        again and again."""
        orders = self.order.split() or [""]
        return orders[self.progress.iteration % len(orders)]

    def parameters(self, model: Any) -> Any:
        return (
            {"d": model.critic.parameters(), "g": model.generator.parameters()}
            if self.by_method
            else {}
        )


def of_critic(real: Tensor, fake: Tensor) -> Tensor:
    return functional.softplus(-real).mean() + functional.softplus(fake).mean()


OPTIMIZERS: dict[str, Any] = {
    "d": {
        "type": "Adam",
        "lr": 0.01,
        "betas": [0.5, 0.9],
        "params": "critic.*",
        "scheduler": {"type": "ExponentialLR", "gamma": 0.9},
    },
    "g": {
        "type": "SGD",
        "lr": 0.1,
        "momentum": 0.9,
        "params": ["generator.*"],
        "scheduler": [{"type": "LinearLR", "end": "4 steps"}, {"type": "CosineAnnealingLR"}],
    },
}
NONE = dict.fromkeys(("console", "perf_stats", "memory_stats", "checkpoint", "sync_buffers"))


def written(**more: Any) -> Experiment:
    data = {
        "name": "gan",
        "task": f"{__name__}:Gan",
        "epochs": 3,
        "batch_size": BATCH,
        "optimizers": OPTIMIZERS,
        "hooks": NONE,
        **more,
    }
    return make_experiment(data)


def loop_of(
    experiment: Experiment,
    hooks: dict[str, Hook] | None = None,
    world: World | None = None,
    folder: Path | None = None,
) -> tuple[Loop, Rows]:
    resolved = resolve(experiment.source)
    rows = Rows()
    world = world or World()
    store = CheckpointStore(Storage(folder), is_master=world.is_master) if folder else None
    return (
        Loop(
            resolved.task,
            resolved.experiment,
            {**resolved.hooks, **(hooks or {})},
            RunContext(world=world, store=store, recorder=rows, artifacts=folder or Path()),
        ),
        rows,
    )


def test_source_code_is_read_only_for_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = loop_of(written())[0], Loop(Points(), experiment(), {})
    monkeypatch.setattr(inspect, "getsourcelines", lambda _: pytest.fail("reads source code"))
    for loop in loops:
        list(loop.run())


# By hand


def by_hand(
    rank: int,
    world_size: int,
    order: str = "dg",
    accumulate: int = 1,
    dtype: Any = None,
    clip: float | None = None,
    schedules: bool = True,
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """A GAN in plain torch: the weights, and the losses of each micro-batch.

    A network is stepped at its turns in a step's last micro-batch, or after these if it had turns
    only before.
    """
    torch.manual_seed(0)
    pair = Pair()
    networks = {"d": pair.critic, "g": pair.generator}
    optimizers = {
        "d": torch.optim.Adam(pair.critic.parameters(), lr=0.01, betas=(0.5, 0.9)),
        "g": torch.optim.SGD(pair.generator.parameters(), lr=0.1, momentum=0.9),
    }
    dataset = Gan().data()["train"]
    sampler: Any = DistributedSampler(dataset, world_size, rank, seed=0)
    loader = DataLoader(dataset, BATCH, sampler=sampler, generator=torch.Generator())
    schedulers: list[Any] = []
    if schedules:
        g = optimizers["g"]
        steps = 3 * -(-len(loader) // accumulate)
        parts = [
            lr_scheduler.LinearLR(g, total_iters=4),
            lr_scheduler.CosineAnnealingLR(g, T_max=steps - 4),
        ]
        schedulers = [
            lr_scheduler.ExponentialLR(optimizers["d"], 0.9),
            lr_scheduler.SequentialLR(g, parts, [4]),
        ]

    def step(turn: str) -> None:
        parameters = [*networks[turn].parameters()]
        for parameter in parameters if world_size > 1 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size  # type: ignore[operator]
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizers[turn].step()
        optimizers[turn].zero_grad()

    turns = cycle(order.split())
    losses = list[dict[str, float]]()
    torch.manual_seed(rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(loader)
        for begin in range(0, len(batches), accumulate):
            group = batches[begin : begin + accumulate]
            waiting = dict[str, None]()
            for points, *_ in group:
                losses.append({})
                for turn in next(turns):
                    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                        fake = pair.generator(torch.randn(len(points), 2))
                        if turn == "d":
                            loss = of_critic(pair.critic(points), pair.critic(fake.detach()))
                        else:
                            loss = functional.softplus(-pair.critic(fake)).mean()
                    (loss / len(group)).backward(inputs=[*networks[turn].parameters()])
                    losses[-1][turn] = loss.item()
                    waiting[turn] = None
                    if points is group[-1][0]:
                        step(turn)
                        del waiting[turn]
            for turn in waiting:
                step(turn)
            for scheduler in schedulers:
                scheduler.step()
    return numbers(pair), losses


@pytest.mark.parametrize(
    ("more", "hand"),
    [
        ({}, {}),
        ({"accumulate": 3}, {"accumulate": 3}),
        ({"precision": "bf16"}, {"dtype": torch.bfloat16}),
        (
            {
                "hooks": {**NONE, "gradient_clip": {"max_norm": 0.05}},
                "task_args": {"by_method": True},
            },
            {"clip": 0.05},
        ),
        ({"task_args": {"order": "ddg"}}, {"order": "ddg"}),
    ],
    ids=["plain", "accumulated", "bf16", "clipped", "two turns of one"],
)
def test_training_equals_a_handwritten_gan(more: dict[str, Any], hand: dict[str, Any]) -> None:
    optimizers = OPTIMIZERS
    if more.get("task_args", {}).get("by_method"):
        optimizers = {
            name: {key: value for key, value in one.items() if key != "params"}
            for name, one in OPTIMIZERS.items()
        }
    loop, rows = loop_of(written(optimizers=optimizers, **more))
    reports = [report.metrics for report in loop.run()]
    model, seen = by_hand(0, 1, **hand)
    losses = [(loss["d"], loss["g"]) for loss in seen]
    assert numbers(loop.state.module) == model
    assert rows.columns("loss_d", "loss_g") == losses
    if "task_args" not in more:
        assert rows.columns("loss") == [(d + g,) for d, g in losses]
        weights = [BATCH] * 7 + [SAMPLES - 7 * BATCH]
        assert reports[0]["train/loss_g"] == pytest.approx(
            sum(g * n for (_, g), n in zip(losses[:8], weights, strict=True)) / SAMPLES
        )
    assert {"lr_d", "lr_g"} <= rows.rows[0].keys()


# Two ranks


def ranks_of_a_gan(rank: int, world_size: int) -> list[Any]:
    """Weights and losses by hand, and those of the loop, also with accumulation."""
    told: list[Any] = []
    for accumulate in (1, 2):
        told.append(by_hand(rank, world_size, accumulate=accumulate))
        loop, rows = loop_of(written(accumulate=accumulate), world=World(rank, world_size))
        list(loop.run())
        told.append((numbers(loop.state.module), rows.columns("loss_d", "loss_g")))
    return told


def test_two_ranks_equal_a_handwritten_gan() -> None:
    for hand, whole, accumulated, in_pairs in on_ranks(ranks_of_a_gan):
        assert whole == (hand[0], [(loss["d"], loss["g"]) for loss in hand[1]])
        assert in_pairs[0] == accumulated[0]


# Turns that are not in each micro-batch

ORDERS = [("dg d", 1), ("dg d", 2), ("ddg g", 3), ("d g d", 2), ("g d d dg", 3)]
PLAIN = {
    name: {key: value for key, value in one.items() if key != "scheduler"}
    for name, one in OPTIMIZERS.items()
}


@pytest.mark.parametrize(("order", "accumulate"), ORDERS)
def test_optimizer_with_a_turn_in_any_micro_batch_is_stepped(
    order: str, accumulate: int, tmp_path: Path
) -> None:
    """As by hand, undisturbed and from checkpoints, with what hooks are told of each step."""
    notes = Notes()
    whole = None
    more = {"task_args": {"order": order}, "accumulate": accumulate, "optimizers": PLAIN}
    expected = by_hand(0, 1, order, accumulate, schedules=False)[0]
    for restore in (None, "step-00000001", "epoch-0001"):
        hooks: dict[str, Hook] = {"notes": notes}
        if not restore:
            hooks["save"] = Checkpoint(every=STEP, keep=None)
        loop, rows = loop_of(written(**more), hooks, folder=tmp_path)
        if restore:
            loop.restore(restore)
        list(loop.run())
        assert numbers(loop.state.module) == expected
        assert all(parameter.grad is None for parameter in loop.state.module.parameters())
        losses = rows.columns("iteration", "loss")
        whole = whole or losses
        assert losses == whole[-len(losses) :]
    assert {turn for event, turn, _ in notes.seen if event == "on_update"} == {"d", "g"}
    assert all(loop.state.optimizers[name].state for name in "dg")


# What hooks see


@dataclass
class Notes(Hook):
    """Which events fire in whose turn, and which gradients there are."""

    def __post_init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def note(self, event: str, state: State) -> None:
        self.seen.append((event, state.turn, len(state.gradients())))

    def on_loss(self, state: State) -> None:
        self.note("on_loss", state)

    def on_backward(self, state: State) -> None:
        self.note("on_backward", state)

    def on_gradients(self, state: State) -> None:
        self.note("on_gradients", state)

    def on_update(self, state: State) -> None:
        self.note("on_update", state)

    def on_step(self, state: State) -> None:
        self.note("on_step", state)


def test_each_turn_fires_its_events_with_its_own_gradients_and_columns(tmp_path: Path) -> None:
    notes = Notes()
    clip = GradientClip(max_norm=0.1)
    loop, rows = loop_of(
        written(accumulate=2),
        {
            "notes": notes,
            "clip": clip,
            "stats": OptimizerStats(every=STEP),
            "nan": NanGuard(),
            "perf": PerfStats(),
        },
        folder=tmp_path,
    )
    list(loop.run())
    begun = [
        ("on_loss", "d", 0),
        ("on_backward", "d", 4),
        ("on_loss", "g", 0),
        ("on_backward", "g", 6),
        ("on_step", None, 10),
    ]
    ended = [
        (event, turn, there)
        for turn, there in (("d", 4), ("g", 6))
        for event in ("on_loss", "on_backward", "on_gradients", "on_update")
    ]
    assert notes.seen[:14] == [*begun, *ended, ("on_step", None, 0)]
    row = next(row for row in rows.rows if row["step"] == 1)
    assert {"grad_norm_d", "grad_norm_g", "update_norm_g", "update_ratio_d"} <= row.keys()
    assert not {"grad_norm", "update_norm"} & row.keys()
    spans = [
        row[name] for name in row if name.endswith("_s") and name not in ("step_s", "iteration_s")
    ]
    assert sum(spans) == pytest.approx(row["step_s"])


# What cannot be


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"optimizers": {}}, r"optimizers: is missing: Gan\.turns\(\) needs an optimizer"),
        ({"task": "tests.tasks:Points"}, r"optimizers: needs a method Points.turns\(\)"),
        ({"optimizer": {"type": "Adam"}}, r"optimizer: cannot be combined with optimizers"),
        (
            {"scheduler": {"type": "StepLR", "step_size": 1}},
            r"scheduler: cannot be combined with optimizers",
        ),
        ({"optimizers": {**OPTIMIZERS, "d": {"lr": 0.1}}}, r"optimizers\.d\.type: is missing"),
        (
            {"optimizers": {**OPTIMIZERS, "d": {**OPTIMIZERS["d"], "lrr": 1}}},
            r"optimizers\.d\.lrr: unknown key",
        ),
        (
            {
                "optimizers": {
                    **OPTIMIZERS,
                    "g": {**OPTIMIZERS["g"], "scheduler": {"type": "StepLR"}},
                }
            },
            r"optimizers\.g\.scheduler\.step_size: is missing",
        ),
        (
            {"changes": [{"at": 1, "set": {"optimizers.e.lr": 1}}]},
            "no such optimizer; available: d, g",
        ),
        (
            {"changes": [{"at": 1, "set": {"optimizer.lr": 1}}]},
            "no such optimizer; available: d, g",
        ),
        (
            {"hooks": {**NONE, "loss_spike": {}}},
            r"hooks\.loss_spike: does not work with several optimizers",
        ),
        (
            {"hooks": {**NONE, "output_mask": {}}},
            r"hooks\.output_mask: does not work with several optimizers",
        ),
    ],
)
def test_invalid_optimizers_are_refused_before_training(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        written(**more)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (None, r"optimizers\.d\.params: is missing, and Gan\.parameters\(\) returns none for 'd'"),
        (
            "critc.*",
            r"optimizers\.d\.params: pattern 'critc\.\*' matches no parameter; did you mean critic",
        ),
        (
            "critic.0.*",
            r"optimizers: leave 2 parameters of the model untrained: critic\.3\.weight, critic\.3\.bias",
        ),
    ],
)
def test_patterns_that_leave_parameters_out_are_refused(params: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loop_of(written(optimizers={**OPTIMIZERS, "d": {**OPTIMIZERS["d"], "params": params}}))


@pytest.mark.parametrize(
    ("order", "message"),
    [("de", r"turns\(\) yields 'e', but `optimizers` has d, g"), ("", r"turns\(\) yields nothing")],
)
def test_unknown_turns_are_refused(order: str, message: str) -> None:
    loop, _ = loop_of(written(task_args={"order": order}))
    with pytest.raises(TaskError, match=message):
        list(loop.run())


@dataclass
class Mistaken(Gan):
    """A GAN that yields something else between the turns of its two optimizers."""

    mistake: str = ""

    def turns(self, model: Any, batch: Any) -> Iterator[Any]:
        first, second = super().turns(model, batch)
        yield first
        yield {"nothing": None, "list": (["g"], second[1])}[self.mistake]
        yield second


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "nothing",
            r"turns\(\) yields None; expected turns, each an optimizer's name and its loss",
        ),
        ("list", r"turns\(\) yields \['g'\], but `optimizers` has d, g"),
    ],
)
def test_anything_but_a_turn_is_refused(mistake: str, message: str) -> None:
    loop, _ = loop_of(written(task=f"{__name__}:Mistaken", task_args={"mistake": mistake}))
    with pytest.raises(TaskError, match=message):
        list(loop.run())


@dataclass
class Untrainable(Gan):
    """A GAN whose turns of one optimizer have nothing to train."""

    detached: str = ""
    frozen: str = ""

    def model(self) -> nn.Module:
        pair = super().model()
        for name, part in pair.named_children():
            part.requires_grad_(name != self.frozen)
        return pair

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
        for name, loss in super().turns(model, batch):
            yield name, loss.detach() if name == self.detached else loss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"detached": "d"},
            r"turns\(\) returns a loss without a gradient: .*test_turns\.py:\d+\)$",
        ),
        (
            {"detached": "g"},
            r"turns\(\) returns a loss without a gradient: .*test_turns\.py:\d+\)$",
        ),
        (
            {"frozen": "generator"},
            r"a loss for 'g', but all parameters of this optimizer are frozen",
        ),
    ],
)
def test_turn_with_nothing_to_train_is_refused(arguments: dict[str, str], message: str) -> None:
    loop, _ = loop_of(written(task=f"{__name__}:Untrainable", task_args=arguments))
    with pytest.raises(TaskError, match=message):
        list(loop.run())


def test_checkpoint_of_other_optimizers_is_refused(tmp_path: Path) -> None:
    loop, _ = loop_of(written(epochs=1), folder=tmp_path)
    next(loop.run())
    loop.save()
    renamed = {"critic": OPTIMIZERS["d"], "g": OPTIMIZERS["g"]}
    other, _ = loop_of(written(optimizers=renamed), folder=tmp_path)
    with pytest.raises(
        CheckpointError,
        match=r"made with other optimizers \(d, g\), and cannot continue with these \(critic, g\)",
    ):
        other.restore("epoch-0001")
