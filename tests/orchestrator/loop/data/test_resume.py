"""A run on two ranks that is killed at a random iteration, and goes on from its last checkpoint, is the undisturbed one."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from hooks import Hook, HookError, Rhythm, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.streams import Streams
from tests.tasks import Points, Rows, Seen, experiment, numbers


@dataclass
class Weighted(Points):
    def sampler(self, dataset: Any, phase: str) -> Any:
        return [1.0 + place % 3 for place in range(len(dataset))] if phase == "train" else None


@dataclass
class Dies(Hook):
    """Fails at a training iteration."""

    iteration: int

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.iteration + 1 == self.iteration:
            raise ZeroDivisionError("dies on purpose")


@dataclass
class Loaded(Points):
    """A loader of its own, which shuffles."""

    def data(self) -> Any:
        return {**super().data(), "train": StatefulDataLoader(super().data()["train"], 4, shuffle=True)}


MADE: dict[str, tuple[Callable[..., Points], dict[str, Any]]] = {
    "weights": (Weighted, {}),
    "stream": (Streams, {"epoch_steps": 4}),
    "stream with places": (partial(Streams, kind="placed", train=53), {"accumulate": 2}),
    "stream in processes": (partial(Streams, train=56), {"epochs": None, "steps": 11, "loader": {"num_workers": 2}}),
    "stream that ends": (Streams, {"epochs": None, "steps": 99, "loader": {"when_dry": "stop"}}),
    "loader": (Loaded, {"batch_size": 32, "epoch_steps": 5}),
}


def live(kind: str, root: Path, world: World, broken_at: int = 0, restore: bool = False) -> dict[str, Any]:
    """A life of a run, to its end or to where it breaks, and what can be compared of it."""
    make, fields = MADE[kind]
    task = make(val=9, batch_norm=True, dropout=0.3, noisy=True)
    store, rows, seen = CheckpointStore(Storage(root), master=world.is_master), Rows(), Seen()
    hooks: dict[str, Hook] = {"sampler_seed": DistSamplerSeed(), "ema": EMA(decay=0.7), "checkpoint": Checkpoint(every=Rhythm(2, "steps")), "seen": seen}
    written = experiment(**{"epochs": 2, "batch_size": 4, "validate_every": Rhythm(5, "steps"), **fields})
    loop = Loop(task, written, {**hooks, "dies": Dies(broken_at)}, world=world, store=store, recorder=rows)
    latest = store.latest(print) if restore else None
    if latest:
        loop.restore(latest)
    begun, reports = loop.state.iteration, []
    try:
        reports = [report.metrics for report in loop.run()]
    except HookError:
        assert broken_at
    columns = rows.columns("phase", "epoch", "iteration", "step", "loss", phase="train")
    return {"begun": begun, "ended": loop.state.iteration, "model": numbers(loop.state.module), "reports": reports, "seen": seen.indices, "rows": columns}


def _lives(rank: int, world_size: int, root: str) -> dict[str, list[dict[str, Any]]]:
    multiprocessing.current_process().daemon = False  # so that a loader may have processes
    os.fsync = lambda file: None
    world, found = World(rank, world_size, rank), {}
    for kind in MADE:
        whole = live(kind, Path(root, kind, "whole"), world)
        broken_at = random.Random(kind).randint(4, whole["ended"] - 1)
        broken = live(kind, Path(root, kind, "again"), world, broken_at)
        found[kind] = [whole, broken, live(kind, Path(root, kind, "again"), world, restore=True)]
    return found


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, Any]]]]:
    return on_ranks(_lives, 2, str(tmp_path_factory.mktemp("lives")))


@pytest.mark.parametrize("kind", MADE)
def test_bit_for_bit(lives: list[dict[str, list[dict[str, Any]]]], kind: str) -> None:
    for of_rank in lives:
        whole, broken, again = of_rank[kind]
        assert 0 < again["begun"] <= broken["ended"] < whole["ended"] == again["ended"]
        assert again["model"] == whole["model"]
        assert again["seen"] == whole["seen"][again["begun"] :]
        assert again["rows"] == [row for row in whole["rows"] if row[2] > again["begun"]]
        assert again["reports"] == whole["reports"][-len(again["reports"]) :]
    assert kind == "loader" or lives[0][kind][0]["seen"] != lives[1][kind][0]["seen"]
