"""Checkpoints in the background hold what synchronous ones do, and are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from orchestrator.checkpoint.index import read_index
from orchestrator.checkpoint.position import Position
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError, StorageError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.checkpoint_writes import BackgroundWrite
from orchestrator.loop.world import World
from orchestrator.stats.read.reading import recorded
from orchestrator.stats.write.recorder import Recorder
from orchestrator.storage import Storage
from tests.orchestrator.checkpoint.saved import ended_at, weights
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers

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
        "checkpoint": Checkpoint(every=Interval.parse(every), keep=2, best="val/accuracy", background=background),
        "gate": gate,
    }
    if store is None:
        store = (Late if background else CheckpointStore)(Storage(root), master=world.is_master)
        store.gate = gate  # type: ignore[attr-defined]
    return Loop(
        TASK, experiment(**{"epochs": 3, "batch_size": 6, **fields}), hooks, RunContext(store=store, world=world)
    )


def everything(root: Path) -> dict[str, Any]:
    """All that lies in the files of all checkpoints, and what the index and the manifests say."""
    store = CheckpointStore(Storage(root))
    kept: dict[str, Any] = {"index": read_index(store.storage)}
    for name in store.names():
        manifest = store.manifest(name)
        kept[name] = {
            "position": manifest["position"],
            "metrics": manifest["metrics"],
            **{file: plain(store.load(name, file)) for file in manifest["files"]},
        }
        kept[name, "files"] = store.storage.names(name)
    return kept


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


class Slow(CheckpointStore):
    """Ends each write only once training has made some more steps, or needs it."""

    released = threading.Event()

    def write_files(self, name: str, files: Any) -> Any:
        self.released.wait(timeout=0.1)
        return super().write_files(name, files)


class Requests(Hook):
    """Asks for checkpoints at some steps, and says after how many steps each write may end."""

    def __init__(self, steps: set[int], delays: list[int], store: Slow) -> None:
        self.steps, self.delays, self.store, self.due = steps, iter(delays), store, 0

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self.store.released.clear()
        self.due = state.step + next(self.delays)

    def on_step(self, state: State) -> None:
        if state.step in self.steps:
            state.request_checkpoint("test")
        if state.step >= self.due or state.checkpoint_reasons or state.finished:
            self.store.released.set()

    def on_phase_end(self, state: State) -> None:
        self.store.released.set()


@pytest.mark.parametrize("seed", range(30))
def test_each_checkpoint_is_kept_as_its_own_snapshot_however_slow_the_writes(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    count, most = draw.randint(1, 4), draw.choice([2, 4])
    requested = {step for step in range(1, 25) if draw.random() < draw.choice([0.1, 0.5])}
    delays = [draw.randint(0, 5) for _ in range(40)]
    store = Slow(Storage(tmp_path))
    ema = EMA(average="power", std=0.1, snapshots=Interval(count, "steps"), keep_snapshots=most)
    hooks: dict[str, Hook] = {
        "ema": ema,
        "checkpoint": Checkpoint(every=Interval(100), keep=100, background=True),
        "requests": Requests(requested, delays, store),
    }
    list(Loop(Points(train=20, val=4), experiment(steps=24, batch_size=5), hooks, RunContext(store=store)).run())
    steps = {name: store.position(name).step for name in store.names()}
    due = list[int]()
    for number in range(1, 24 // count + 1):
        apart = next(2**power for power in range(10) if number // 2**power <= most)
        if number % apart == 0:
            due = [other for other in [*due, number] if other % apart == 0]
    snapshots = ema.state_dict()["snapshots"]["numbers"]
    assert sorted(snapshots.values()) == due
    assert {name: steps[name] for name in snapshots} == {name: number * count for name, number in snapshots.items()}
    for name, step in steps.items():
        asked = store.load(name, "hooks.pt")["ema"]["snapshots"]["asked"]
        assert asked is None or asked * count == step


@pytest.mark.parametrize("every", ["3 steps", "1"])
def test_what_later_steps_change_does_not_reach_the_files(tmp_path: Path, every: str) -> None:
    """Weights, momentum, averages, buffers and generators go on in place before a byte is written; which is best is
    judged before too."""
    reports, stored = [], []
    for background in (False, True):
        loop = loop_in(tmp_path / str(background), background, every=every)
        reports.append([report.metrics for report in loop.run()])
        stored.append(loop.plan.hooks["gate"].stored)
    assert reports[0] == reports[1]
    assert everything(tmp_path / "True") == everything(tmp_path / "False")
    assert [name for name, _ in stored[0]] == [name for name, _ in stored[1]]
    assert stored[1] != stored[0]


def test_tensors_that_share_memory_share_it_in_the_file(tmp_path: Path) -> None:
    tied = torch.arange(6.0)

    class Tied(Hook):
        def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
            checkpoint["tied"] = {"one": tied, "part": tied[2:]}

        def on_saved(self, state: State, path: str) -> None:
            tied.add_(1)

    store = CheckpointStore(Storage(tmp_path))
    hooks = {"checkpoint": Checkpoint(every=Interval(2, "steps"), background=True, save_last=False), "tied": Tied()}
    list(Loop(TASK, experiment(steps=4), hooks, RunContext(store=store)).run())
    for name, added in (("step-00000002", 0), ("step-00000004", 1)):
        found = store.load(name, "tied.pt")
        assert found["one"].tolist() == [value + added for value in range(6)]
        assert found["part"].untyped_storage().data_ptr() == found["one"].untyped_storage().data_ptr()


def test_what_cannot_be_copied_is_refused_with_what_to_say(tmp_path: Path) -> None:
    class Sparse(Hook):
        def rank_state_dict(self) -> dict[str, Any]:
            return {"sparse": torch.eye(3).to_sparse()}

    for background in (False, True):
        hooks = {"checkpoint": Checkpoint(background=background), "sparse": Sparse()}
        run = Loop(TASK, experiment(steps=2), hooks, RunContext(store=CheckpointStore(Storage(tmp_path)))).run()
        if not background:
            assert len(list(run)) == 1
            continue
        with pytest.raises(
            CheckpointError,
            match=r"cannot be copied to this host's memory: .*\. Set hooks\.checkpoint\.background: false",
        ):
            list(run)


@pytest.mark.parametrize(("failing", "told_at"), [("step-00000003", 6), ("epoch-0001", 8)])
def test_what_could_not_be_written_is_told_at_the_next_checkpoint_at_the_latest_or_at_the_end(
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
        StorageError, match=rf"\.{failing}\.partial/rank-0000\.pt: No space left on device\. The disk is full"
    ):
        list(loop.run())
    assert (
        3 < loop.state.step <= told_at
    )  # sooner where ranks ask each other whether to stop meanwhile, which time decides
    assert CheckpointStore(Storage(tmp_path)).names() == (["step-00000003", "step-00000006"] if told_at == 8 else [])


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_being_written_as_a_run_ends_is_there(tmp_path: Path, fails: bool) -> None:
    """Where the run is ended at a report, and where validation fails right after the epoch was saved."""
    loop = loop_in(tmp_path, True, every="1", validate_every=Interval(1) if fails else Interval(0))
    reports = loop.run()
    if fails:
        loop.evaluation.run = lambda phase: 1 / 0  # type: ignore[method-assign, assignment]
        with pytest.raises(ZeroDivisionError):
            next(reports)
    else:
        assert next(reports).checkpoint is None
        reports.close()
    assert CheckpointStore(Storage(tmp_path)).names() == ["epoch-0001"]
    assert loop.plan.hooks["gate"].stored == ([] if fails else [("epoch-0001", 8)])


def test_a_report_of_the_end_and_a_checkpoint_that_is_asked_for_name_what_is_there(tmp_path: Path) -> None:
    loop = loop_in(tmp_path, True, every="1", epochs=2, validate_every=Interval(0))
    reports = loop.run()
    next(reports)
    saved = loop.save()
    assert saved is not None
    assert CheckpointStore(Storage(tmp_path)).names()[-1] == Path(saved).name
    assert [Path(str(report.checkpoint)).name for report in reports] == ["epoch-0002"]


def test_the_pause_and_the_time_beside_are_told_apart(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    loop = loop_in(tmp_path, True)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0, "node": "n", "attempt": 0})
    loop = Loop(
        TASK,
        experiment(steps=4),
        {"checkpoint": Checkpoint(every=Interval(2, "steps"), background=True)},
        RunContext(store=CheckpointStore(storage), recorder=recorder),
    )
    list(loop.run())
    costs = [row for row in recorded(storage, "costs").read().to_pylist() if row["hook"] == "(loop)"]
    assert {(event, sum(row["calls"] for row in costs if row["event"] == event)) for event in ("save", "write")} == {
        ("save", 2),
        ("write", 2),
    }
    assert all(row["seconds"] > 0 for row in costs)


# Ranks


def _on_two(rank: int, world_size: int, root: str) -> dict[str, Any]:
    world, found = World(rank, world_size, rank), dict[str, Any]()
    for background in (False, True):
        loop = loop_in(Path(root, str(background)), background, world, batch_size=4)
        found[str(background)] = [[report.metrics for report in loop.run()], numbers(loop.state.module)]

    class Full(CheckpointStore):
        def write_files(self, name: str, files: Any) -> Any:
            raise StorageError(f"{name}: no space left on device")

    store = (CheckpointStore, Full)[rank](Storage(Path(root, "full")), master=world.is_master)
    failing = loop_in(Path(root, "full"), True, world, store=store)
    with pytest.raises((CheckpointError, StorageError)) as error:
        list(failing.run())
    left = loop_in(Path(root, "left"), True, world, every="1", validate_every=Interval(0))
    reports = left.run()
    next(reports)
    reports.close()  # which asks no rank
    world.barrier()
    return {**found, "full": str(error.value), "left": left.plan.hooks["gate"].stored}


def test_ranks_agree_without_a_word_from_their_threads(tmp_path: Path) -> None:
    first, second = on_ranks(_on_two, 2, str(tmp_path))
    assert first["True"] == first["False"]
    assert everything(tmp_path / "True") == everything(tmp_path / "False")
    assert second["full"] == "step-00000003: no space left on device"
    assert first["full"] == f"checkpoint {tmp_path}/full/step-00000003 cannot be written: rank 1: {second['full']}"
    assert CheckpointStore(Storage(tmp_path / "full")).names() == []
    assert first["left"] == second["left"] == [("epoch-0001", 4)]
    assert CheckpointStore(Storage(tmp_path / "left")).names() == ["epoch-0001"]


def written_by_two(store: CheckpointStore, name: str, step: int) -> bool:
    """A checkpoint of two ranks that their threads write, one after the other; whether the master has put it in its
    place."""
    store.discard_unfinished(name)
    thread = ThreadPoolExecutor(1)

    def commit(entries: Any) -> None:
        store.commit(name, entries, Position(step=step), {"world_size": 2, "metrics": {}})

    def write(rank: int, files: Any) -> bool:
        world: Any = SimpleNamespace(rank=rank, world_size=2, is_master=rank == 0)
        return BackgroundWrite(thread, world, store, name, files, commit).end(others_s=0)

    return write(1, {"rank-0001.pt": weights(step)}) and write(
        0, {"model.pt": weights(step), "rank-0000.pt": weights(step)}
    )


def test_a_kill_at_any_operation_of_the_threads_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tried = CheckpointStore(Storage(tmp_path)), 0
    assert written_by_two(store, "step-0", 0)
    while True:
        with monkeypatch.context() as patch:
            done = ended_at(patch, tried)
            try:
                is_there = written_by_two(store, f"step-{tried + 1}", tried + 1)
            except KeyboardInterrupt:
                is_there = False
        found = store.latest()
        assert found is not None, done
        assert found == f"step-{tried + 1}" or not is_there
        assert (
            store.load(found, "rank-0001.pt")["weight"][0, 0]
            == store.load(found, "model.pt")["weight"][0, 0]
            == store.position(found).step
        )
        assert set(json.loads((tmp_path / found / "manifest.json").read_text())["files"]) | {"manifest.json"} == set(
            store.storage.names(found)
        )
        if is_there:
            break
        tried += 1
    assert tried > 10


def test_a_checkpoint_is_as_many_writes_as_it_has_files_and_one_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ended_at(monkeypatch, -1)
    list(loop_in(tmp_path, False, epochs=1, validate_every=Interval(0)).run())
    written = Counter(
        name.rpartition("/")[2] for operation, _, name in (one.partition(" ") for one in done) if operation == "create"
    )
    files = [*CheckpointStore(Storage(tmp_path)).files("epoch-0001"), "manifest.json", "index.json"]
    assert written == dict.fromkeys(files, 3), "at steps 3 and 6, and at the end"
