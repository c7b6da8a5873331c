"""MLflow, as its own client finds the run in a SQLite file."""

import logging
import math
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hooks import Plan, State
from hooks.interval import Interval
from hooks.logs.mlflow import MLflow, make_key
from hooks.matrix import encode_matrix
from orchestrator.disk.media import MediaWriter
from tests.hooks.phases import loss_rows, run_phase

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

from mlflow.tracking import MlflowClient
from mlflow.utils.validation import _validate_metric_name

CONFIG = {
    "name": "digits",
    "optimizer": {"lr": 0.1},
    "scheduler": None,
    "out_dir": "/tmp/x",
    "sweep": {"trials": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all runs here, whose database is made once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def local_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def begin(hook: MLflow, folder: Path, **fields: Any) -> State:
    state = State(artifacts=folder, **{"name": "digits-1", "config": CONFIG, **fields})
    Plan({"mlflow": hook}).fire("on_start", state)
    return state


def find(folder: Path, hook: MLflow) -> tuple[MlflowClient, Any]:
    """Return a client, and the MLflow run of a hook."""
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"tags.`hookyard.run_id` = '{hook.run_id}'")
    return client, run


def curve(folder: Path, hook: MLflow, name: str) -> list[tuple[int, float]]:
    client, run = find(folder, hook)
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


def test_run_is_sent_and_continued_after_a_resume(folder: Path) -> None:
    first = MLflow(every=Interval(2, "iterations"), tags={"team": "vision"}, wait=120)
    state = begin(first, folder, accumulate=2)
    run_phase(first, state, "train", loss_rows(1, 3, 5, 9), length=5)
    first.on_exception(state, RuntimeError("killed"))
    assert find(folder, first)[1].info.status == "FAILED"

    hook = MLflow(every=Interval(2, "iterations"), tags={"team": "vision"}, wait=120)
    hook.load_state_dict(first.state_dict())
    place = {"step": 2, "iteration": 4, "phase_iteration": 4}
    state = begin(hook, folder, accumulate=2, **place, config={**CONFIG, "epochs": 99})
    run_phase(hook, state, "train", loss_rows(4), length=5, metrics={"train/loss": 4.4})
    run_phase(hook, state, "val", loss_rows(1), metrics={"val/accuracy": 0.5, "val/f1": math.nan})
    hook.on_report(state, {"val/accuracy": 0.5, "train/samples_per_s": 100.0, "epoch": 0})
    hook.on_saved(state, "/runs/digits-1/checkpoints/epoch-0001")
    hook.on_end(state)
    assert hook.run_id == first.run_id

    client, run = find(folder, hook)
    assert (run.info.run_name, run.info.status) == ("digits-1", "FINISHED")
    assert client.get_experiment(run.info.experiment_id).name == "digits"
    # Parameters are written once, as MLflow refuses other values.
    assert run.data.params == {"name": "digits", "optimizer.lr": "0.1", "scheduler": "none"}
    assert run.data.tags["team"] == "vision"
    assert run.data.tags["checkpoint"] == "/runs/digits-1/checkpoints/epoch-0001"
    assert curve(folder, hook, "train/loss") == [(1, 2.0), (2, 7.0), (2, 4.0)]
    assert curve(folder, hook, "train/phase_loss") == [(2, 4.4)]
    assert curve(folder, hook, "val/accuracy") == [(2, 0.5)]
    assert math.isnan(curve(folder, hook, "val/f1")[0][1])
    assert curve(folder, hook, "train/samples_per_s") == [(2, 100.0)]
    assert curve(folder, hook, "iteration")[:3] == [(1, 2), (2, 4), (2, 5)]


def test_checkpoint_that_is_saved_before_the_server_answers_continues_the_run(
    folder: Path,
) -> None:
    first = MLflow(every=Interval(1, "iterations"), wait=120)
    early = first.state_dict()
    run_phase(first, begin(first, folder, name="digits-6"), "train", loss_rows(1), length=3)
    first.on_end(State())

    hook = MLflow(every=Interval(1, "iterations"), wait=120)
    hook.load_state_dict(early)
    state = begin(hook, folder, name="digits-6", step=1, iteration=1, phase_iteration=1)
    run_phase(hook, state, "train", loss_rows(2), length=3)
    hook.on_end(State())
    assert curve(folder, hook, "train/loss") == [(1, 1.0), (2, 2.0)]


@settings(max_examples=2000, deadline=None)
@given(st.text("ax2F40_/.@é -", min_size=1, max_size=14))
@example("a@x2F_/b")
@example("a_x40//b")
def test_every_name_can_be_read_from_its_key(name: str) -> None:
    key = make_key(name)
    assert re.sub("_x([0-9A-F]{2,})_", lambda code: chr(int(code[1], 16)), key) == name
    _validate_metric_name(key)


def test_key_of_a_long_name_is_the_key_of_no_other_name() -> None:
    key = make_key("n" * 300)
    assert len(key) == len(make_key("n" * 250)) == 250
    assert make_key(key) != key


def test_each_name_has_its_own_curve_and_parameter(folder: Path) -> None:
    """Names that MLflow refuses, and others that an escape or a cut could be confused with."""
    names = [
        "acc@1",
        "acc_1",
        "acc@5",
        "acc_5",
        "map(50)",
        "map[50]",
        "f1 %",
        "a//b",
        "a/b",
        "a/./b",
        "é",
        "e\n",
        "e",
    ]
    names += ["acc_x40_1", "acc_x40@1", "acc@x40_1", "_x40@", "@x40_", "..", "n" * 300, "n" * 299]
    metrics = {f"val/{name}": float(number) for number, name in enumerate(names)}
    hook = MLflow(wait=120)
    config = {
        "name": "names",
        "task_args": {name: str(number) for number, name in enumerate(names)},
    }
    state = begin(hook, folder, name="digits-4", config=config)
    run_phase(hook, state, "val", loss_rows(1), metrics=metrics)
    hook.on_end(state)

    client, run = find(folder, hook)
    assert run.info.status == "FINISHED"
    sent = {key: value for key, value in run.data.metrics.items() if key.startswith("val/")}
    assert sorted(sent.values()) == sorted(metrics.values())
    assert all(len(client.get_metric_history(run.info.run_id, key)) == 1 for key in sent)
    assert {key: sent[key] for key in ("val/acc_1", "val/a/b", "val/é")} == {
        key: metrics[key] for key in ("val/acc_1", "val/a/b", "val/é")
    }
    assert sent["val/acc_x40_1"] == metrics["val/acc@1"]
    params = [value for key, value in run.data.params.items() if key.startswith("task_args.")]
    assert sorted(params, key=int) == [*config["task_args"].values()]


def test_refused_parameters_cost_neither_the_curves_nor_another_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = MlflowClient.log_batch

    def refuse(client: MlflowClient, run_id: str, **items: Any) -> Any:
        if "params" in items:
            raise ValueError("another value")
        return sends(client, run_id, **items)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    hook = MLflow(every=Interval(1, "iterations"), wait=120, experiment="refused")
    run_phase(hook, begin(hook, folder, name="digits-5"), "train", loss_rows(1, 2), length=3)
    hook.on_end(State())
    assert curve(folder, hook, "train/loss") == [(1, 1.0), (2, 2.0)]
    client = find(folder, hook)[0]
    assert len(client.search_runs([client.get_experiment_by_name("refused").experiment_id])) == 1


def test_failing_server_is_retried_and_the_run_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = threading.Semaphore(0)

    def refuse(client: MlflowClient, name: str) -> None:
        refused.release()
        raise ConnectionError("no server there")

    hook = MLflow(every=Interval(1, "iterations"), wait=120)
    with caplog.at_level(logging.WARNING, "hookyard"):
        with monkeypatch.context() as patched:
            patched.setattr(MlflowClient, "get_experiment_by_name", refuse)
            state = begin(hook, folder, name="digits-2")
            run_phase(hook, state, "train", loss_rows(1), length=3)
            for _ in range(2):  # as it starts, and for a point
                assert refused.acquire(timeout=60)
        run_phase(hook, state, "train", loss_rows(2), length=3)
        hook.on_end(state)
    assert (
        "mlflow: an update was not sent; the run continues: ConnectionError: no server there"
        in caplog.messages
    )
    assert curve(folder, hook, "train/loss") == [(2, 2)]


def test_resume_without_the_earlier_database_starts_a_new_mlflow_run(folder: Path) -> None:
    hook = MLflow(wait=120)
    hook.load_state_dict({**hook.state_dict(), "run_id": "0" * 8})
    hook.on_end(begin(hook, folder, name="digits-3"))
    assert find(folder, hook)[1].info.run_name == "digits-3"


def test_recorded_images_and_tables_are_sent(folder: Path, tmp_path: Path) -> None:
    hook = MLflow(wait=120)
    writer = MediaWriter()
    state = begin(hook, folder, media=writer, phase="val", step=7)
    pixels = torch.randint(0, 256, (3, 5, 6), dtype=torch.uint8)
    state.record_image("acc@1/samples", pixels)
    state.record_table("worst", pd.DataFrame({"word": ["a|b"], "score": [0.5]}))
    state.add_media("matrix", "classes", partial(encode_matrix, np.eye(3), ""))
    writer.close()
    hook.on_end(state)
    client, found = find(folder, hook)
    paths = [file.path for file in client.list_artifacts(found.info.run_id, "images")]
    # MLflow's page reads key and step from the name of the file.
    names = sorted(re.split(r"[%+]", path)[:3] for path in paths if path.endswith(".png"))
    assert names == [
        ["images/val~acc_x40_1~samples", "step", "7"],
        ["images/val~classes", "step", "7"],
    ]
    (sent,) = (path for path in paths if "samples" in path and path.endswith(".png"))
    local = client.download_artifacts(found.info.run_id, sent, str(tmp_path))
    np.testing.assert_array_equal(np.asarray(Image.open(local)), pixels.permute(1, 2, 0).numpy())
    table = "media/val/worst/step-00000007.csv"
    local = client.download_artifacts(found.info.run_id, table, str(tmp_path))
    assert Path(local).read_text() == "word,score\na|b,0.5\n"
    assert (folder / "mlflow/artifacts" / found.info.run_id / "artifacts" / table).is_file()
