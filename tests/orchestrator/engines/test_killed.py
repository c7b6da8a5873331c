"""A run on two ranks, killed at some iteration and resumed, equals the uninterrupted one in its
files, bit for bit."""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks import Hook, State
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.disk.media import read_media
from orchestrator.disk.metadata import LaunchMetadata
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import make_experiment, to_yaml
from orchestrator.loop.world import World
from orchestrator.process.child_signals import for_children
from orchestrator.runs.result import Run
from tests.iterable_tasks import IterablePoints
from tests.ranks import on_ranks, until_killed
from tests.tasks import Points, plain

HERE = __name__


@dataclass
class Gan(Points):
    def model(self) -> nn.Module:
        generator = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
        return nn.ModuleDict(
            {
                "generator": generator,
                "critic": nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.1), nn.Linear(8, 1)),
            }
        )

    def data(self) -> Any:
        return {"train": super().data()["train"]}

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Tensor]]:
        fake = model["generator"](torch.randn(len(batch[0]), 2))
        yield (
            "d",
            (
                functional.softplus(-model["critic"](batch[0]))
                + functional.softplus(model["critic"](fake.detach()))
            ).mean(),
        )
        yield "g", functional.softplus(-model["critic"](fake)).mean()


@dataclass
class Dies(Hook):
    """Ends its process at a training iteration, as an out-of-memory killer does; not where it is
    0."""

    iteration: int = 0

    def on_batch(self, state: State) -> None:
        state.record_image("points", state.batch[0].sigmoid())
        if state.phase == "train":
            state.record(
                seen=float(
                    sum(place * int(index) for place, index in enumerate(state.batch[2], start=1))
                )
            )

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.iteration + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


OPTIMIZERS = {
    "d": {
        "type": "Adam",
        "params": "critic.*",
        "scheduler": {"type": "ExponentialLR", "gamma": 0.9},
    },
    "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"},
}
TURNS = {"optimizer": None, "optimizers": OPTIMIZERS, "validate_every": None}
ITERABLE = f"{IterablePoints.__module__}:IterablePoints"
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "turns": (f"{HERE}:Gan", {}, TURNS),
    "init": ("tests.tasks:Points", {}, {"init": {"from": "weights.pt", "except": ["4.*"]}}),
    "iterable data with places": (ITERABLE, {"kind": "placed", "train": 53}, {"accumulate": 2}),
    "iterable data in processes": (
        ITERABLE,
        {"train": 56},
        {"epochs": None, "steps": 11, "loader": {"num_workers": 2}},
    ),
    "iterable data that ends": (
        ITERABLE,
        {},
        {"epochs": None, "steps": 99, "loader": {"on_exhausted": "stop"}},
    ),
}


def assignment(kind: str, root: Path, dies_at: int = 0) -> Assignment:
    task, given, fields = KINDS[kind]
    is_gan = kind == "turns"
    written = {
        "name": "killed",
        "task": task,
        "epochs": 2,
        "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
        "task_args": {
            "val": 0 if is_gan else 9,
            "batch_norm": True,
            "dropout": 0.3,
            "noisy": True,
            **given,
        },
        "batch_size": 4,
        "validate_every": "5 steps",
        "workers": {"count": 2},
        "hooks": {
            "console": None,
            "memory_stats": None,
            "ema": {"decay": 0.7},
            "checkpoint": {"every": "2 steps"},
            "dies": {"type": f"{HERE}:Dies", "iteration": dies_at},
        },
        **fields,
    }
    if "init" in written:
        torch.manual_seed(3)
        torch.save(Points(batch_norm=True).model().state_dict(), root / "weights.pt")
        written["init"] = {**fields["init"], "from": str(root / "weights.pt")}
    experiment = make_experiment(
        {name: value for name, value in written.items() if value is not None}
    )
    launch = LaunchMetadata(init=find_initial_weights(experiment))
    folder = create_run(root, kind.replace(" ", "-"), to_yaml(experiment), launch)
    return Assignment(experiment.source, str(folder))


def _train(rank: int, world_size: int, given: dict[str, Assignment]) -> dict[str, int]:
    """Runs to their ends, or to the process's; how far each came, by its last report."""
    multiprocessing.current_process().daemon = False  # so that a loader may have processes
    multiprocessing.set_start_method(
        "fork", force=True
    )  # as runs have it: those of a forkserver outlive a rank that is killed
    signal.signal(signal.SIGTERM, for_children(lambda number, frame: None))  # as runs have it, too
    ends = {}
    for kind, assigned in given.items():
        for report in Session(assigned, World(rank, world_size, rank)).reports():
            ends[kind] = int(report.metrics["iteration"])
    return ends


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Run, Run]]:
    """Of each kind a run that nothing befell, and one that was killed once and resumed."""
    folders = tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("killed")
    whole, killed = ({kind: assignment(kind, folder) for kind in KINDS} for folder in folders)
    ends, _ = on_ranks(_train, 2, whole)
    for kind, given in killed.items():
        dies_at = random.Random(kind).randint(4, ends[kind] - 1)
        dying = Assignment(
            given.source.with_values({"hooks.dies.iteration": dies_at}), given.location
        )
        assert -signal.SIGKILL in until_killed(_train, 2, {kind: dying})
    assert on_ranks(_train, 2, killed)[0] == ends
    return {
        kind: (Run(RunFolder(whole[kind].location)), Run(RunFolder(killed[kind].location)))
        for kind in KINDS
    }


def rows(run: Run) -> pd.DataFrame:
    """What does not depend on clocks and memory, of every row."""
    stats = run.stats
    told = [
        name
        for name in stats
        if name in ("seen", "loss", "loss_d", "loss_g", "accuracy") or name.startswith("lr")
    ]
    keys = ["rank", "phase", "epoch", "iteration", "step"]
    return stats[[*keys, *told]].sort_values(keys).reset_index(drop=True)


def reports(run: Run) -> list[dict[str, Any]]:
    timed = ("time", "attempt")
    return [
        {
            name: value
            for name, value in report.items()
            if not name.startswith(timed) and not name.endswith("_s")
        }
        for report in run.reports()
    ]


def last_checkpoint(run: Run) -> dict[str, Any]:
    """All that it holds, of each rank too, but for the place in an iterable dataset, which rows tell, and
    measured speeds."""
    store = CheckpointStore(find_checkpoint_folder(run.folder))
    name = store.resolve("last")
    return {
        file: plain(store.load(name, file) | {"data": None, "perf_stats": None})
        for file in store.read_manifest(name)["files"]
    }


def media(run: Run) -> dict[str, bytes]:
    """The content of each file that the index names. There is no other, but for those that a killed
    process was writing, which the driver deletes."""
    files = {entry.file for entry in read_media(run.folder.storage)}
    written = run.folder.storage.tree("media")
    assert files == {f"media/{file}" for file in written if "/." not in file}
    return {file: run.folder.storage.read(file) for file in files}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_run_resumes_bit_for_bit_with_each_row_once(
    runs: dict[str, tuple[Run, Run]], kind: str
) -> None:
    whole, killed = runs[kind]
    assert [attempt.checkpoint is None for attempt in killed.folder.read_attempts()] == [
        True,
        False,
    ]
    assert not killed.stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()
    pd.testing.assert_frame_equal(rows(killed), rows(whole), check_exact=True)
    assert reports(killed) == reports(whole)
    assert last_checkpoint(killed) == last_checkpoint(whole)
    assert media(killed) == media(whole)
    assert len(media(whole)) > 5
    seen = rows(whole).query("phase == 'train'").groupby("rank", observed=True)["seen"].apply(list)
    assert seen[0] != seen[1]
