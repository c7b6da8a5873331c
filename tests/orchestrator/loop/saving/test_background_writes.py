"""Checkpoints in the background hold what synchronous ones do, and are there whole or not at
all."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.position import Position
from hooks.training.ema import EMA
from orchestrator.disk.checkpoints.index import read_index
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import CheckpointError, StorageError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving import background_writes
from orchestrator.loop.saving.background_saver import BackgroundSaver
from orchestrator.loop.saving.background_writes import BackgroundWrite
from orchestrator.loop.saving.saver import PreparedCheckpoint
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.orchestrator.disk.checkpoints.saved import DETAILS, kill_at, weights
from tests.ranks import on_ranks
from tests.tasks import Points, Seen, experiment, numbers, plain

TASK = Points(train=44, val=11, batch_norm=True, dropout=0.4, noisy=True)


class Gate(Hook):
    """Lets nothing be written until training has gone on, or a report is due."""

    def __init__(self) -> None:
        self.moved = threading.Event()
        self.stored: list[tuple[str, int]] = []

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self.moved.clear()

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self.moved.set()

    def on_saved(self, state: State, path: str) -> None:
        self.stored.append((path.rpartition("/")[2], state.step))


class Late(CheckpointStore):
    """Writes nothing before the gate is open, which one that waits for it opens after a while."""

    gate: Gate

    def write_files(self, name: str, files: Any) -> Any:
        self.gate.moved.wait(timeout=0.1)
        return super().write_files(name, files)


def loop_in(
    root: Path,
    background: bool,
    world: World | None = None,
    every: str = "3 steps",
    store: CheckpointStore | None = None,
    **fields: Any,
) -> Loop:
    world = world or World()
    torch.manual_seed(99)
    gate = Gate()
    hooks: dict[str, Hook] = {
        "ema": EMA(decay=0.7),
        "checkpoint": Checkpoint(
            every=Interval.parse(every), keep=2, best="val/accuracy", background=background
        ),
        "gate": gate,
    }
    if store is None:
        store = (Late if background else CheckpointStore)(Storage(root), is_master=world.is_master)
        store.gate = gate  # type: ignore[attr-defined]
    return Loop(
        TASK,
        experiment(**{"epochs": 3, "batch_size": 6, **fields}),
        hooks,
        RunContext(store=store, world=world),
    )


def everything(root: Path) -> dict[str, Any]:
    """All that lies in the files of all checkpoints, and what the index and the manifests say."""
    store = CheckpointStore(Storage(root))
    kept: dict[str, Any] = {"index": read_index(store.storage)}
    for name in store.list_names():
        manifest = store.read_manifest(name)
        kept[name] = {
            "position": manifest["position"],
            "metrics": manifest["metrics"],
            **{file: plain(store.load(name, file)) for file in manifest["files"]},
        }
        kept[name, "files"] = store.storage.names(name)
    return kept


@pytest.mark.parametrize("every", ["3 steps", "1"])
def test_later_steps_do_not_change_a_checkpoint_being_written(tmp_path: Path, every: str) -> None:
    """All state changes in place before the first byte is written, and the best checkpoint is
    chosen by then."""
    reports = []
    stored = []
    for background in (False, True):
        loop = loop_in(tmp_path / str(background), background, every=every)
        reports.append([report.metrics for report in loop.run()])
        stored.append(loop.runs[0].plan.hooks["gate"].stored)
    assert reports[0] == reports[1]
    assert everything(tmp_path / "True") == everything(tmp_path / "False")
    assert [name for name, _ in stored[0]] == [name for name, _ in stored[1]]
    assert stored[1] != stored[0]


@pytest.mark.parametrize(("failing", "told_at"), [("step-00000003", 6), ("epoch-0001", 8)])
def test_failed_write_is_raised_by_the_next_checkpoint_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, told_at: int
) -> None:
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if f".{failing}.partial" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    loop = loop_in(tmp_path, True, epochs=1)
    with pytest.raises(
        StorageError,
        match=rf"\.{failing}\.partial/rank-0000\.pt: No space left on device\. The disk is full",
    ):
        list(loop.run())
    assert (
        3 < loop.state.step <= told_at
    )  # sooner where ranks ask each other whether to stop meanwhile, which time decides
    assert CheckpointStore(Storage(tmp_path)).list_names() == (
        ["step-00000003", "step-00000006"] if told_at == 8 else []
    )


@pytest.mark.parametrize("fails", [False, True])
def test_checkpoint_under_way_is_finished_when_the_run_ends(tmp_path: Path, fails: bool) -> None:
    """Where the run is ended at a report, and where validation fails right after the epoch was
    saved."""
    loop = loop_in(tmp_path, True, every="1", validate_every=Interval(1) if fails else Interval(0))
    reports = loop.run()
    if fails:
        loop.runs[0].evaluation.evaluate = lambda kind: 1 / 0  # type: ignore[method-assign, assignment]
        with pytest.raises(ZeroDivisionError):
            next(reports)
    else:
        next(reports)
        assert loop.runs[0].checkpoints.saver.last_name is None
        reports.close()
    assert CheckpointStore(Storage(tmp_path)).list_names() == ["epoch-0001"]
    assert loop.runs[0].plan.hooks["gate"].stored == ([] if fails else [("epoch-0001", 8)])


@pytest.mark.parametrize("background", [False, True])
def test_seconds_of_saving_are_recorded_beside_those_of_hooks(
    tmp_path: Path, background: bool
) -> None:
    """The loop's pause, and the time in which a thread writes."""
    storage = Storage(tmp_path)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0, "node": "n", "attempt": 0})
    hooks: dict[str, Hook] = {
        "checkpoint": Checkpoint(every=Interval(2, "steps"), background=background)
    }
    context = RunContext(store=CheckpointStore(storage), recorder=recorder)
    list(Loop(TASK, experiment(steps=4), {**hooks, "seen": Seen()}, context).run())
    costs = open_recorded(storage, "costs").read().to_pylist()
    assert {row["hook"] for row in costs} == {"(loop)", "checkpoint", "seen"}
    saving = [row for row in costs if row["hook"] == "(loop)"]
    calls = {
        event: sum(row["calls"] for row in saving if row["event"] == event)
        for event in ("save", "write")
    }
    assert calls == {"save": 2, "write": 2 if background else 0}
    assert all(row["seconds"] > 0 and row["step"] in (2, 4) for row in saving)


# Ranks


def _on_two(rank: int, world_size: int, root: str) -> dict[str, Any]:
    world = World(rank, world_size, rank)
    found = dict[str, Any]()
    for background in (False, True):
        loop = loop_in(Path(root, str(background)), background, world, batch_size=4)
        found[str(background)] = [
            [report.metrics for report in loop.run()],
            numbers(loop.state.module),
        ]

    class Full(CheckpointStore):
        def write_files(self, name: str, files: Any) -> Any:
            raise StorageError(f"{name}: no space left on device")

    store = (CheckpointStore, Full)[rank](Storage(Path(root, "full")), is_master=world.is_master)
    failing = loop_in(Path(root, "full"), True, world, store=store)
    with pytest.raises((CheckpointError, StorageError)) as error:
        list(failing.run())
    left = loop_in(Path(root, "left"), True, world, every="1", validate_every=Interval(0))
    reports = left.run()
    next(reports)
    reports.close()  # which asks no rank
    world.barrier()
    return {**found, "full": str(error.value), "left": left.runs[0].plan.hooks["gate"].stored}


def test_ranks_write_in_the_background_as_they_do_at_once(tmp_path: Path) -> None:
    first, second = on_ranks(_on_two, 2, str(tmp_path))
    assert first["True"] == first["False"]
    assert everything(tmp_path / "True") == everything(tmp_path / "False")
    assert second["full"] == "step-00000003: no space left on device"
    assert (
        first["full"]
        == f"checkpoint {tmp_path}/full/step-00000003 cannot be written: rank 1: {second['full']}"
    )
    assert CheckpointStore(Storage(tmp_path / "full")).list_names() == []
    assert first["left"] == second["left"] == [("epoch-0001", 4)]
    assert CheckpointStore(Storage(tmp_path / "left")).list_names() == ["epoch-0001"]


def written_by_two(store: CheckpointStore, name: str, step: int) -> bool:
    """Write a checkpoint in threads of two ranks, one after the other; return whether the master
    has committed it."""
    store.discard_unfinished(name)
    thread = ThreadPoolExecutor(1)

    def commit(entries: Any) -> None:
        store.commit(name, entries, Position(step=step), {**DETAILS, "world_size": 2})

    def write(rank: int, files: Any) -> BackgroundWrite:
        world: Any = SimpleNamespace(rank=rank, world_size=2, is_master=rank == 0)
        checkpoint = PreparedCheckpoint(name, files, commit, has_shards=False)
        write = BackgroundWrite.start(checkpoint, store, world, thread)
        write.end(peer_timeout_s=0)
        return write

    write(1, {"rank-0001.pt": weights(step)})
    return write(0, {"model.pt": weights(step), "rank-0000.pt": weights(step)}).is_committed()


def test_rank_does_not_announce_a_checkpoint_that_the_master_never_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is rank 1, and there is an older checkpoint of the same name."""
    monkeypatch.setattr(background_writes, "PEER_TIMEOUT_S", 0.0)
    store = CheckpointStore(Storage(tmp_path), is_master=False)
    assert written_by_two(CheckpointStore(Storage(tmp_path)), "epoch-0001", 1)
    events: list[str] = []
    plan = SimpleNamespace(fire=lambda event, *_: events.append(event))
    world = SimpleNamespace(rank=1, world_size=2, is_master=False, device=torch.device("cpu"))
    flusher: Any = SimpleNamespace(charge=lambda event, seconds: None)
    collector: Any = SimpleNamespace(state=None, plan=plan, world=world)
    saver = BackgroundSaver(store, collector, flusher, lambda: None)
    files = {"rank-0001.pt": weights(2)}
    commit: Any = None
    saver._write(PreparedCheckpoint("epoch-0001", files, commit, has_shards=False), 0.0)
    saver.finish_without_peers()
    assert events == []
    assert (tmp_path / ".epoch-0001.partial" / "rank-0001.json").exists()


def test_kill_at_any_operation_leaves_an_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(Storage(tmp_path))
    tried = 0
    assert written_by_two(store, "step-0", 0)
    while True:
        with monkeypatch.context() as patch:
            done = kill_at(patch, tried)
            try:
                is_there = written_by_two(store, f"step-{tried + 1}", tried + 1)
            except KeyboardInterrupt:
                is_there = False
        found = store.find_latest().name
        assert found is not None, done
        assert found == f"step-{tried + 1}" or not is_there
        assert (
            store.load(found, "rank-0001.pt")["weight"][0, 0]
            == store.load(found, "model.pt")["weight"][0, 0]
            == store.read_position(found).step
        )
        assert set(json.loads((tmp_path / found / "manifest.json").read_text())["files"]) | {
            "manifest.json"
        } == set(store.storage.names(found))
        if is_there:
            break
        tried += 1
    assert tried > 10
