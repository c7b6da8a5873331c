"""Weights & Biases: what its run is told, and what the real one writes offline."""

from __future__ import annotations

import importlib.machinery
import json
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hooks import Plan, State
from hooks.interval import Interval
from hooks.logs.wandb import WandB
from tests.hooks.phases import loss_rows, run_phase

CONFIG = {"name": "digits", "optimizer": {"lr": 0.1}, "scheduler": None, "out_dir": "/tmp/x"}


class FakeRun:
    """Remembers what a W&B run is told."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.axes: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, float]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None

    def define_metric(self, name: str, **about: Any) -> None:
        self.axes[name] = about

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def curve(self, name: str) -> list[tuple[float, float]]:
        return [(row["step"], row[name]) for row in self.rows if name in row]


class Service:
    """W&B's module: gives runs, unless it is down."""

    def __init__(self) -> None:
        self.runs: list[FakeRun] = []
        self.torn_down_after: list[int | None] = []
        self.down = False
        self.gate: threading.Event | None = None

    def init(self, **about: Any) -> FakeRun:
        if self.gate is not None:
            self.gate.wait()
        if self.down:
            raise ConnectionError("no service there")
        self.runs.append(FakeRun(about))
        return self.runs[-1]

    def teardown(self) -> None:
        self.torn_down_after.append(self.runs[-1].exit_code)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service()
    module = ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    vars(module).update(init=service.init, Settings=dict, teardown=service.teardown)
    monkeypatch.setitem(sys.modules, "wandb", module)
    yield service
    if service.gate is not None:
        service.gate.set()


def _begin(hook: WandB, folder: Path, **fields: Any) -> State:
    state = State(artifacts=folder, name="digits-1", config=CONFIG, **fields)
    Plan({"wandb": hook}).fire("on_start", state)
    return state


def test_tracker_receives_the_whole_run(service: Service, tmp_path: Path) -> None:
    hook = WandB(every=Interval(2, "iterations"), group="sweep", tags=("a", "b"), mode="offline")
    state = _begin(hook, tmp_path, accumulate=2)
    run_phase(hook, state, "train", loss_rows(1, 3, 5, 9, 4), batch_sizes=[4] * 5, metrics={"train/loss": 4.4})
    run_phase(hook, state, "val", loss_rows(1), metrics={"val/accuracy": 0.5})
    hook.on_report(state, {"val/accuracy": 0.5, "train/samples_per_s": 100.0, "epoch": 0})
    hook.on_saved(state, "/runs/digits-1/checkpoints/epoch-0001")
    hook.on_end(state)
    (run,) = service.runs
    told = {name: run.about[name] for name in ("project", "name", "group", "tags", "mode", "resume", "dir", "config")}
    assert told == {
        "project": "digits",
        "name": "digits-1",
        "group": "sweep",
        "tags": ("a", "b"),
        "mode": "offline",
        "resume": "allow",
        "dir": str(tmp_path),
        "config": {"name": "digits", "optimizer.lr": 0.1, "scheduler": "none"},
    }
    assert run.curve("train/loss") == [(1, 2.0), (2, 7.0), (2, 4.0)]
    assert run.curve("train/phase_loss") == [(2, 4.4)]
    assert run.curve("val/accuracy") == [(2, 0.5)]
    assert run.curve("train/samples_per_s") == [(2, 100.0)]
    assert [row["iteration"] for row in run.rows][:3] == [2, 4, 5]
    assert (run.summary, run.exit_code) == ({"checkpoint": "/runs/digits-1/checkpoints/epoch-0001"}, 0)
    assert service.torn_down_after == [0], "only then are an offline run's files complete"


def test_axis_is_the_step_before_and_after_a_resume(service: Service, tmp_path: Path) -> None:
    """MMEngine's WandbVisBackend leaves the axis to W&B, which counts messages; resumed runs have broken curves."""
    first = WandB(every=Interval(1, "iterations"))
    state = _begin(first, tmp_path)
    run_phase(first, state, "train", loss_rows(1, 2), length=5)
    first.on_exception(state, RuntimeError("killed"))
    second = WandB(every=Interval(1, "iterations"))
    second.load_state_dict(first.state_dict())
    state = _begin(second, tmp_path, iteration=2, step=2, phase_iteration=2)
    run_phase(second, state, "train", loss_rows(3), length=5)
    second.on_end(state)
    killed, resumed = service.runs
    assert killed.about["id"] == resumed.about["id"]
    assert killed.exit_code == 1
    assert [*killed.curve("train/loss"), *resumed.curve("train/loss")] == [(1, 1), (2, 2), (3, 3)]
    assert resumed.axes["*"] == {"step_metric": "step"}


def _messages(file: Path) -> Iterator[bytes]:
    """The records of an offline run: after seven bytes, those of a LevelDB log in blocks of 32 KiB."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_real_client_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    hook = WandB(every=Interval(1, "iterations"), mode="offline", wait=120)
    state = _begin(hook, tmp_path, step=100, iteration=100)
    run_phase(hook, state, "train", loss_rows(0.5, 0.25), metrics={"train/loss": 0.375})
    hook.on_end(state)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [wandb_internal_pb2.Record.FromString(message) for message in _messages(file)]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.display_name, run.project) == (hook.state_dict()["run_id"], "digits-1", "digits")
    assert {item.key or item.nested_key[0]: json.loads(item.value_json) for item in run.config.update}[
        "optimizer.lr"
    ] == 0.1
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == [(101, 0.5), (102, 0.25)]
