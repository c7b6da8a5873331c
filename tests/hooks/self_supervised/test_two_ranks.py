"""Each self-supervised method on two ranks, against one rank with the joined batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hooks import Interval
from hooks.self_supervised.byol import BYOL
from hooks.self_supervised.deepcluster import DeepCluster
from hooks.self_supervised.dino import DINO
from hooks.self_supervised.ibot import IBOT
from hooks.self_supervised.moco import MoCo
from hooks.self_supervised.swav import SwAV
from hooks.self_supervised.swav_momentum import SwAVMomentum
from hooks.training.freeze_parameters import FreezeParameters
from orchestrator.loop.world import World
from tests.hooks.self_supervised import test_ibot
from tests.hooks.self_supervised.clouds import Clouds, train
from tests.hooks.self_supervised.views import Miniature, pairs, plain, share
from tests.ranks import on_ranks
from tests.tasks import numbers

SIZES = [[4, 4], [4, 4], [5, 3]]
"""Samples of each rank in each batch of views; only a phase's last may differ."""
VIEWS: dict[str, Callable[[], Any]] = {
    "byol": lambda: BYOL(momentum=0.8),
    "dino": lambda: DINO(momentum=0.8),
    "ibot": lambda: IBOT(momentum=0.8),
    "moco": lambda: MoCo(momentum=0.9, queue_length=11),
}
CLOUDS: dict[str, tuple[Clouds, Callable[[], dict[str, Any]]]] = {
    "swav": (
        Clouds(),
        lambda: {
            "freeze": FreezeParameters(patterns=["prototypes.weight"], until=Interval(2, "steps")),
            "swav": SwAV(),
        },
    ),
    "swav with a queue": (Clouds(), lambda: {"swav": SwAV(queue_length=16)}),
    "swav_momentum": (Clouds(), lambda: {"swav": SwAVMomentum(momentum=0.8, queue_length=16)}),
    "deepcluster": (
        Clouds(val=9, prototypes=0),
        lambda: {"deepcluster": DeepCluster(clusters=[4, 6], iterations=5)},
    ),
}


def train_on_views(method: str, rank: int, world_size: int) -> dict[str, Any]:
    """Train on three batches. Gradients are means over ranks, so weights are compared before the
    uneven last batch."""
    is_masked = method == "ibot"
    mine = Miniature(
        VIEWS[method](),
        method,
        network=test_ibot.network if is_masked else None,
        rank=rank,
        world_size=world_size,
        length=len(SIZES),
    )
    batches = test_ibot.batches(len(SIZES)) if is_masked else pairs(len(SIZES))
    if world_size > 1:
        batches = [share(batch, sizes, rank) for batch, sizes in zip(batches, SIZES, strict=True)]
    mine.train(batches[:-1])
    weights = {**numbers(mine.state.module), **plain(mine.hook.state_dict()["teacher"])}
    mine.train(batches[-1:])
    gathered = {
        name: value for name, value in plain(mine.hook.state_dict()).items() if name != "teacher"
    }
    return {"losses": mine.losses, "sizes": SIZES, "equal": {**weights, **gathered}}


def train_on_clouds(method: str, rank: int, world_size: int) -> dict[str, Any]:
    """Train by the real loop, whose ranks have interleaved samples."""
    task, make_hooks = CLOUDS[method]
    hooks = make_hooks()
    trained = train(task, hooks, world=World(rank, world_size), batch_size=8 // world_size)
    assignments = (
        plain(hooks["deepcluster"].state_dict()["assignments"]) if "deepcluster" in hooks else []
    )
    sizes = [[4, 4]] * len(trained.losses)
    return {
        "losses": trained.losses,
        "sizes": sizes,
        "equal": {**trained.weights, "assignments": assignments},
    }


def cluster_odd_shards(rank: int, world_size: int) -> dict[str, Any]:
    """Train for an epoch on shards of 24 and 23 samples, so that one sample is trained on twice."""
    hook = DeepCluster(clusters=[4, 6], iterations=5)
    task = Clouds(train=47, prototypes=0)
    world = World(rank, world_size)
    trained = train(task, {"deepcluster": hook}, world=world, batch_size=8 // world_size, epochs=1)
    return {"assignments": plain(hook.state_dict()["assignments"]), "weights": trained.weights}


def train_all(rank: int, world_size: int) -> dict[str, dict[str, Any]]:
    return {
        **{method: train_on_views(method, rank, world_size) for method in VIEWS},
        **{method: train_on_clouds(method, rank, world_size) for method in CLOUDS},
        "odd shards": cluster_odd_shards(rank, world_size),
    }


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """What one rank alone, and each of two, came to."""
    return [train_all(0, 1), *on_ranks(train_all)]


@pytest.mark.parametrize("method", [*VIEWS, *CLOUDS])
def test_two_ranks_train_as_one_with_the_joined_batch(
    method: str, outcomes: list[dict[str, Any]]
) -> None:
    alone, first, second = (outcome[method] for outcome in outcomes)
    assert first["equal"] == second["equal"]
    assert first["equal"].keys() == alone["equal"].keys()
    for name, value in alone["equal"].items():
        torch.testing.assert_close(
            torch.tensor(first["equal"][name]), torch.tensor(value), rtol=1e-4, atol=1e-5, msg=name
        )
    losses = zip(first["losses"], second["losses"], strict=True)
    joined = [
        float(np.average(pair, weights=sizes))
        for pair, sizes in zip(losses, first["sizes"], strict=True)
    ]
    assert joined == pytest.approx(alone["losses"], rel=1e-4)


def test_deepcluster_assigns_the_samples_of_shards_of_unequal_length(
    outcomes: list[dict[str, Any]],
) -> None:
    alone, first, second = (outcome["odd shards"] for outcome in outcomes)
    assert first == second
    assert first["assignments"] == alone["assignments"]
