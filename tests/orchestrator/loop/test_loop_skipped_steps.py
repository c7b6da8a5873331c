"""Runs that skip optimizer steps, so that several positions share a step."""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import orchestrator.loop.stopping as stopping_module
from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.position import Stage
from hooks.training.early_stopping import EarlyStopping
from orchestrator.disk.checkpoints.contents import load_buffers
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.task import Task
from tests.iterable_tasks import IterablePoints
from tests.orchestrator.loop.step.test_turns import Gan
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers

TASK = Points(train=44, val=11, batch_norm=True, dropout=0.4, noisy=True)
STEP = Interval(1, "steps")


@dataclass
class Skips(Hook):
    """Skips the updates of some iterations, or of all after one."""

    iterations: frozenset[int] = frozenset()
    after: float = float("inf")

    def on_gradients(self, state: State) -> None:
        iteration = state.iteration + 1
        if iteration in self.iterations or iteration > self.after:
            state.skip_update("a test")


@dataclass
class AsksFor(Hook):
    """Makes a request at some iterations."""

    request: str
    iterations: tuple[int, ...]

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.iterations:
            getattr(state, f"request_{self.request}")("a test")


@dataclass
class Validated(Hook):
    """Keeps the step, the loss and the buffers of each validation."""

    steps: list[int] = field(default_factory=list)
    buffers: dict[float, list[Any]] = field(default_factory=dict)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "val":
            self.steps.append(state.step)
            self.buffers[state.metrics["val/loss"]] = [
                buffer.tolist() for buffer in state.module.buffers()
            ]


def open_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(Storage(folder))


def stored_buffers(store: CheckpointStore, label: str) -> list[Any]:
    buffers, _ = load_buffers(store, label)
    return [buffer.tolist() for buffer in buffers.values()]


RUNNERS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "micro-batches of one": (Points(), {}, 1),
    "three micro-batches": (Points(train=200), {"accumulate": 3}, 3),
    "accumulate: auto": (Points(), {"accumulate": "auto"}, 1),
    "a closure": (Points(), {"optimizer": Component(type="LBFGS", lr=0.1)}, 1),
    "an iterable dataset": (
        IterablePoints(train=200),
        {"epochs": None, "steps": 25, "accumulate": 3},
        3,
    ),
    "turns": (
        Gan(),
        {
            "optimizer": None,
            "optimizers": {
                "d": {"type": "SGD", "lr": 0.1, "params": "critic.*"},
                "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"},
            },
            "accumulate": 2,
        },
        2,
    ),
}


@pytest.mark.parametrize("request_", ["stop", "pause"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_run_ends_at_the_next_boundary_while_all_steps_are_skipped(
    runner: str, request_: str, tmp_path: Path
) -> None:
    task, fields, accumulate = RUNNERS[runner]
    hooks = {
        "skips": Skips(after=0),
        "asks": AsksFor(request_, (4,)),
        "checkpoint": Checkpoint(every=Interval(9)),
    }
    loop = Loop(task, experiment(**fields), hooks, RunContext(store=open_store(tmp_path)))
    *_, last = loop.run()
    boundary = -(-4 // accumulate) * accumulate
    assert (loop.state.step, last.stopped, last.interrupted) == (
        0,
        ("a test",),
        request_ == "pause",
    )
    assert loop.state.iteration == boundary
    assert open_store(tmp_path).list_names() == [f"step-00000000-iteration-{boundary:08d}"]


def _stop_on_rank_1(rank: int, world_size: int, root: str) -> list[Any]:
    """Where two ranks end that skip all steps, when one of them asks for a stop or an interruption
    comes."""

    def train(accumulate: int, interrupted: bool) -> tuple[int, int, list[str]]:
        hooks: dict[str, Hook] = {"skips": Skips(after=0)}
        if rank == 1 and not interrupted:
            hooks["asks"] = AsksFor("stop", (4,))
        store = CheckpointStore(Storage(f"{root}/{accumulate}-{interrupted}"), is_master=rank == 0)
        context = RunContext(
            world=World(rank, world_size, rank),
            store=store,
            stop_requested=lambda: interrupted and rank == 1 and loop.state.iteration >= 4,
        )
        loop = Loop(Points(train=200), experiment(accumulate=accumulate), hooks, context)
        list(loop.run())
        return loop.state.iteration, loop.state.step, store.list_names()

    stopping_module.CHECK_EVERY_S = 0.0
    return [
        train(accumulate, interrupted) for accumulate, interrupted in product((1, 3), (False, True))
    ]


def test_ranks_end_together_at_the_next_boundary_while_all_steps_are_skipped(
    tmp_path: Path,
) -> None:
    first, second = on_ranks(_stop_on_rank_1, 2, str(tmp_path))
    names = {4: ["step-00000000-iteration-00000004"], 6: ["step-00000000-iteration-00000006"]}
    assert first == second == [(end, 0, names[end]) for end in (4, 4, 6, 6)]


def test_checkpoint_requested_in_a_skipped_step_is_saved_at_its_boundary(tmp_path: Path) -> None:
    """With three micro-batches a step, iterations 4 to 6 and 7 to 9 are skipped; 8 and 13 lie
    within steps."""
    hooks = {"skips": Skips(frozenset({6, 9})), "asks": AsksFor("checkpoint", (6, 8, 13))}
    context = RunContext(store=open_store(tmp_path))
    list(Loop(Points(train=200), experiment(accumulate=3, epochs=1), hooks, context).run())
    assert open_store(tmp_path).list_names() == ["step-00000003"], "the run keeps the newest"
    positions = Positions()
    list(
        Loop(
            Points(train=200),
            experiment(accumulate=3, epochs=1),
            {**hooks, "saved": positions},
            context,
        ).run()
    )
    assert positions.saved == [
        (6, "step-00000001-iteration-00000006"),
        (9, "step-00000001-iteration-00000009"),
        (15, "step-00000003"),
    ]


class Positions(Hook):
    """Keeps the iteration and the name of each checkpoint."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, str]] = []

    def on_saved(self, state: State, path: str) -> None:
        self.saved.append((state.iteration, path.rpartition("/")[2]))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_resume_after_a_skipped_step_is_bit_for_bit(accumulate: int, tmp_path: Path) -> None:
    """Also from checkpoints of the same step, and with a change of the learning rate at this
    step."""
    fields: dict[str, Any] = {
        "accumulate": accumulate,
        "batch_size": 4,
        "changes": [{"at": "2 steps", "set": {"optimizer.lr": 0.03}}],
        "validate_every": "2 steps",
    }
    skipped = frozenset(accumulate * number for number in (1, 3, 4, 6)) | {11, 12, 22}

    def train(store: CheckpointStore, restore: str | None = None) -> tuple[Any, list[Any]]:
        torch.manual_seed(7)
        hooks = {
            "skips": Skips(skipped),
            "checkpoint": Checkpoint(every=Interval(0), keep=None),
            "asks": AsksFor("checkpoint", tuple(range(25))),
            "kept": Kept(),
        }
        loop = Loop(TASK, experiment(**fields), hooks, RunContext(store=store))
        if restore:
            loop.restore(restore)
        reports = [report.metrics for report in loop.run()]
        assert loop.state.optimizer is not None
        return (
            numbers(loop.state.module),
            loop.state.optimizer.state_dict()["param_groups"],
        ), reports

    expected, reports = train(open_store(tmp_path / "whole"))
    names = open_store(tmp_path / "whole").list_names()
    assert len(names) > 20 / accumulate
    assert any("iteration" in name for name in names)
    for name in names:
        store = open_store(tmp_path / name)
        store.copy_from(open_store(tmp_path / "whole"), name)
        final, remaining = train(store, name)
        assert final == expected, name
        assert remaining == reports[len(reports) - len(remaining) :], name


class Kept(Hook):
    """Keeps every checkpoint."""

    state_fields = ("names",)

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_saved(self, state: State, path: str) -> None:
        assert state.checkpoints is not None
        self.names = [*self.names, path.rpartition("/")[2]]
        state.checkpoints.retain("kept", self.names)


class LossAlone(Points):
    """Has no metric besides the loss, which is then the main metric."""

    metrics = Task.metrics


@pytest.mark.parametrize("every", [STEP, Interval(3, "steps"), Interval(1)])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("best", ["val/loss", None])
def test_best_checkpoint_has_the_buffers_that_were_validated(
    every: Interval, background: bool, best: str | None, tmp_path: Path
) -> None:
    """The last iteration of each epoch skips its step, and its batch changes the running
    statistics."""
    validated = Validated()
    hooks = {
        "skips": Skips(frozenset({4, 8, 12})),
        "checkpoint": Checkpoint(every=every, keep=None, best=best, background=background),
        "validated": validated,
    }
    store = open_store(tmp_path)
    task = LossAlone(train=32, val=11, batch_norm=True)
    list(Loop(task, experiment(epochs=3), hooks, RunContext(store=store)).run())
    name = store.resolve("best")
    assert store.read_position(name).iteration % 4 == 0
    best_buffers = validated.buffers[min(validated.buffers)]
    assert stored_buffers(store, name) == best_buffers
    last = store.resolve("last")
    assert (store.read_position(last).iteration, store.read_position(last).stage > Stage.TRAIN) == (
        12,
        True,
    )


def test_stream_that_ends_within_a_step_is_saved_as_validated(tmp_path: Path) -> None:
    """Four batches make two steps; the fifth changes only the running statistics."""
    validated, store = Validated(), open_store(tmp_path)
    hooks = {
        "checkpoint": Checkpoint(every=STEP, keep=None, best="val/loss"),
        "validated": validated,
    }
    fields: dict[str, Any] = {
        "epochs": None,
        "steps": 99,
        "accumulate": 2,
        "loader": {"on_exhausted": "stop"},
    }
    list(
        Loop(
            IterablePoints(train=40, val=11, batch_norm=True),
            experiment(**fields),
            hooks,
            RunContext(store=store),
        ).run()
    )
    assert store.list_names() == [
        "step-00000001",
        "step-00000002",
        "step-00000002-iteration-00000005",
    ]
    (buffers,) = validated.buffers.values()
    for label in ("best", "last"):
        assert stored_buffers(store, label) == buffers


@pytest.mark.parametrize("accumulate", [1, 3])
def test_validates_once_at_each_interval_while_steps_are_skipped(accumulate: int) -> None:
    """The steps after 2 and 4 are attempted three times each; epochs end in between."""
    validated = Validated()
    attempts = (3, 4, 7, 8)
    skips = Skips(frozenset(accumulate * attempt for attempt in attempts))
    fields: dict[str, Any] = {
        "accumulate": accumulate,
        "validate_every": "2 steps",
        "epochs": None,
        "steps": 8,
    }
    task = Points(train=16 * accumulate, val=11)
    list(Loop(task, experiment(**fields), {"skips": skips, "validated": validated}).run())
    assert validated.steps == [2, 4, 6, 8]


@pytest.mark.parametrize("save_last", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"validate_every": "2 steps"}, {"epochs": None, "steps": 99}]
)
def test_run_that_stops_at_a_validation_keeps_its_end(
    fields: dict[str, Any], save_last: bool, tmp_path: Path
) -> None:
    hooks = {
        "checkpoint": Checkpoint(every=Interval(0), save_last=save_last),
        "early_stopping": EarlyStopping("val/loss", patience=1, min_delta=99),
    }
    store = open_store(tmp_path)
    loop = Loop(Points(), experiment(**fields), hooks, RunContext(store=store))
    *_, last = loop.run()
    assert last.stopped
    assert [store.read_position(name).iteration for name in store.list_names()] == [
        loop.state.iteration
    ] * save_last


def test_run_that_is_killed_after_it_saved_its_end_still_stops_when_resumed(tmp_path: Path) -> None:
    """Another run may continue from the same checkpoint."""

    def make_loop(store: CheckpointStore) -> Loop:
        hooks = {
            "checkpoint": Checkpoint(every=Interval(0)),
            "early_stopping": EarlyStopping("val/loss", patience=1, min_delta=99),
        }
        return Loop(Points(test=5), experiment(epochs=9), hooks, RunContext(store=store))

    store = open_store(tmp_path)
    reports = list(make_loop(store).run())
    (name,) = store.list_names()
    resumed = make_loop(store)
    resumed.restore(name)
    assert [report.metrics for report in resumed.run()] == [
        report.metrics for report in reports[1:]
    ]
    assert resumed.runs[0].decision.reasons == reports[-1].stopped != ()

    other_store = open_store(tmp_path / "other")
    other_store.copy_from(store, name)
    other = make_loop(other_store)
    other.restore(name)
    next(other.run())
    assert other.state.stop_reasons == []


def test_run_that_stops_at_a_validation_saves_its_end_once(tmp_path: Path) -> None:
    positions = Positions()
    hooks = {
        "checkpoint": Checkpoint(every=Interval(1)),
        "early_stopping": EarlyStopping("val/loss", patience=1, min_delta=99),
        "saved": positions,
    }
    list(Loop(Points(), experiment(), hooks, RunContext(store=open_store(tmp_path))).run())
    assert positions.saved == [(7, "epoch-0001"), (14, "epoch-0002")]
