"""MLflow: what its client is told, and what the real one keeps in a SQLite file."""

from __future__ import annotations

import importlib.machinery
import logging
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hooks import Plan, State
from hooks.interval import Interval
from hooks.logs.mlflow import MLflow
from tests.hooks.phases import loss_rows, run_phase

CONFIG = {"name": "digits", "optimizer": {"lr": 0.1}, "scheduler": None, "out_dir": "/tmp/x", "sweep": {"trials": 8}}


class Missing(Exception):
    """MLflow's exception, with its codes."""

    error_code = "RESOURCE_DOES_NOT_EXIST"


class Server:
    """Remembers what clients say; `down` refuses them all, `gate` holds them back."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.down = False
        self.refused = threading.Semaphore(0)
        self.gate: threading.Event | None = None
        self.uris: list[str] = []

    def client(self, tracking_uri: str) -> Server:
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> None:
        if self.gate is not None:
            self.gate.wait()
        if self.down:
            self.refused.release()
            raise ConnectionError("no server there")

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment_id: str, tags: dict[str, str], run_name: str) -> Any:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {
            "experiment": experiment_id,
            "name": run_name,
            "tags": tags,
            "params": {},
            "metrics": [],
            "status": "RUNNING",
        }
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def update_run(self, run_id: str, status: str) -> None:
        if run_id not in self.runs:
            raise Missing
        self.runs[run_id]["status"] = status

    set_terminated = update_run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.runs[run_id]["metrics"] += [(key, value, step) for key, value, _, step in metrics]
        self.runs[run_id]["params"] |= dict(params)

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id]["tags"][key] = value

    def curve(self, key: str, run_id: str = "run0") -> list[tuple[int, float]]:
        return [(step, value) for name, value, step in self.runs[run_id]["metrics"] if name == key]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    modules = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": server.client},
        "mlflow.exceptions": {"MlflowException": Missing},
        "mlflow.entities": {"Metric": lambda *values: values, "Param": lambda *values: values},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield server
    if server.gate is not None:
        server.gate.set()


def _begin(hook: MLflow, folder: Path, **fields: Any) -> State:
    state = State(artifacts=folder, name="digits-1", **{"config": CONFIG, **fields})
    Plan({"mlflow": hook}).fire("on_start", state)
    return state


def test_tracker_receives_the_whole_run(server: Server, tmp_path: Path) -> None:
    hook = MLflow(every=Interval(2, "iterations"), tags={"team": "vision"})
    state = _begin(hook, tmp_path, accumulate=2)
    run_phase(hook, state, "train", loss_rows(1, 3, 5, 9, 4), batch_sizes=[4] * 5, metrics={"train/loss": 4.4})
    run_phase(hook, state, "val", loss_rows(1), metrics={"val/accuracy": 0.5})
    hook.on_report(state, {"val/accuracy": 0.5, "train/samples_per_s": 100.0, "epoch": 0})
    hook.on_saved(state, "/runs/digits-1/checkpoints/epoch-0001")
    hook.on_end(state)
    run = server.runs["run0"]
    assert (run["experiment"], run["name"], run["status"]) == ("digits", "digits-1", "FINISHED")
    assert run["params"] == {"name": "digits", "optimizer.lr": "0.1", "scheduler": "none"}
    assert run["tags"] == {"team": "vision", "checkpoint": "/runs/digits-1/checkpoints/epoch-0001"}
    assert server.curve("train/loss") == [(1, 2.0), (2, 7.0), (2, 4.0)]
    assert server.curve("train/phase_loss") == [(2, 4.4)]
    assert server.curve("val/accuracy") == [(2, 0.5)]
    assert server.curve("train/samples_per_s") == [(2, 100.0)]
    assert server.curve("iteration")[:3] == [(1, 2), (2, 4), (2, 5)]
    assert server.uris == [f"sqlite:///{tmp_path}/mlflow/mlflow.db"]
    assert (tmp_path / "mlflow").is_dir()


def test_failing_server_is_retried_and_the_run_continues(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.down = True
    hook = MLflow(every=Interval(1, "iterations"))
    with caplog.at_level(logging.WARNING, "hookyard"):
        state = _begin(hook, tmp_path)
        run_phase(hook, state, "train", loss_rows(1), length=3)
        for _ in range(2):  # as it starts, and for a point
            assert server.refused.acquire(timeout=60)
        server.down = False
        run_phase(hook, state, "train", loss_rows(2), length=3)
        hook.on_end(state)
    assert (
        "mlflow cannot send (the run continues, and it keeps trying): ConnectionError: no server there"
        in caplog.messages
    )
    assert server.curve("train/loss") == [(2, 2)]


def test_real_client_writes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    first = MLflow(every=Interval(1, "iterations"), wait=120)
    state = _begin(first, tmp_path)
    run_phase(first, state, "train", loss_rows(1, math.nan), length=3)
    first.on_saved(state, "somewhere")
    first.on_exception(state, RuntimeError("killed"))
    second = MLflow(every=Interval(1, "iterations"), wait=120)
    second.load_state_dict(first.state_dict())
    state = _begin(second, tmp_path, step=2, iteration=2, phase_iteration=2, config={**CONFIG, "epochs": 99})
    run_phase(second, state, "train", loss_rows(3), length=3)
    second.on_end(state)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    assert first.run_id is not None
    assert second.run_id == first.run_id
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["optimizer.lr"]) == ("digits-1", "FINISHED", "0.1")
    assert run.data.tags["checkpoint"] == "somewhere"
    assert "epochs" not in run.data.params, "parameters are written once: MLflow refuses other values"
    curve = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "train/loss")}
    assert curve == pytest.approx({1: 1.0, 2: math.nan, 3: 3.0}, nan_ok=True)
