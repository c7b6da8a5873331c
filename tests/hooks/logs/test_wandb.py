"""Weights & Biases, as its own client writes the run offline."""

import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from hooks import Plan, State
from hooks.interval import Interval
from hooks.logs.wandb import WandB
from hooks.matrix import encode_matrix
from orchestrator.disk.media import MediaWriter
from tests.hooks.phases import loss_rows, run_phase

CONFIG = {"name": "digits", "optimizer": {"lr": 0.1}, "scheduler": None, "out_dir": "/tmp/x"}


def begin(hook: WandB, folder: Path, **fields: Any) -> State:
    state = State(artifacts=folder, name="digits-1", config=CONFIG, **fields)
    Plan({"wandb": hook}).fire("on_start", state)
    return state


def messages(file: Path) -> Iterator[bytes]:
    """Yield the records of an offline run: after seven bytes, those of a LevelDB log in blocks of
    32 KiB."""
    content = file.read_bytes()
    at = 7
    parts = b""
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


class Written:
    """An offline run, by the kinds of its records."""

    def __init__(self, folder: Path) -> None:
        from wandb.proto import wandb_internal_pb2

        (file,) = folder.glob("wandb/offline-run-*/*.wandb")
        self._records = [
            wandb_internal_pb2.Record.FromString(message) for message in messages(file)
        ]
        self.run = self._of("run")[0]
        self.config = values(self.run.config.update)
        self.rows = [values(record.item) for record in self._of("history")]
        self.summary: dict[str, Any] = {}
        for record in self._of("summary"):
            self.summary |= values(record.update)
        self.exit_codes = [record.exit_code for record in self._of("exit")]
        self.axes = {
            record.glob_name or record.name: record.step_metric for record in self._of("metric")
        }

    def _of(self, kind: str) -> list[Any]:
        return [
            getattr(record, kind)
            for record in self._records
            if record.WhichOneof("record_type") == kind
        ]

    def curve(self, name: str) -> list[tuple[float, float]]:
        return [(row["step"], row[name]) for row in self.rows if name in row]


def values(items: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def test_run_is_written_and_continued_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MMEngine's WandbVisBackend leaves the axis to W&B, which counts messages; resumed runs have
    broken curves."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    fields: dict[str, Any] = {"group": "sweep", "tags": ("a", "b"), "mode": "offline", "wait": 120}
    first, second = (WandB(every=Interval(2, "iterations"), **fields) for _ in range(2))
    state = begin(first, tmp_path / "first", accumulate=2)
    run_phase(first, state, "train", loss_rows(1, 3, 5, 9), batch_sizes=[4] * 4, length=5)
    first.on_exception(state, RuntimeError("killed"))

    second.load_state_dict(first.state_dict())
    place = {"step": 2, "iteration": 4, "phase_iteration": 4}
    state = begin(second, tmp_path / "second", accumulate=2, **place)
    run_phase(second, state, "train", loss_rows(4), length=5, metrics={"train/loss": 4.4})
    run_phase(second, state, "val", loss_rows(1), metrics={"val/accuracy": 0.5})
    second.on_report(state, {"val/accuracy": 0.5, "train/samples_per_s": 100.0, "epoch": 0})
    second.on_saved(state, "/runs/digits-1/checkpoints/epoch-0001")
    second.on_end(state)

    killed = Written(tmp_path / "first")
    resumed = Written(tmp_path / "second")
    assert killed.run.run_id == resumed.run.run_id == first.run_id
    assert (killed.exit_codes, resumed.exit_codes) == ([1], [0])
    run = resumed.run
    assert (run.project, run.display_name, run.run_group, [*run.tags]) == (
        "digits",
        "digits-1",
        "sweep",
        ["a", "b"],
    )
    assert {
        "name": "digits",
        "optimizer.lr": 0.1,
        "scheduler": "none",
    }.items() <= resumed.config.items()
    assert resumed.axes["*"] == "step"
    assert [*killed.curve("train/loss"), *resumed.curve("train/loss")] == [
        (1, 2.0),
        (2, 7.0),
        (2, 4.0),
    ]
    assert [row["iteration"] for row in killed.rows] == [2, 4]
    assert resumed.curve("train/phase_loss") == [(2, 4.4)]
    assert resumed.curve("val/accuracy") == [(2, 0.5)]
    assert resumed.curve("train/samples_per_s") == [(2, 100.0)]
    assert resumed.summary["checkpoint"] == "/runs/digits-1/checkpoints/epoch-0001"


def test_recorded_images_and_tables_are_sent(tmp_path: Path) -> None:
    hook = WandB(mode="offline", wait=120)
    writer = MediaWriter()
    state = begin(hook, tmp_path, media=writer, phase="val", step=7)
    pixels = torch.randint(0, 256, (3, 5, 6), dtype=torch.uint8)
    state.record_image("samples", pixels)
    state.record_table("worst", pd.DataFrame({"word": ["a|b"], "score": [0.5]}))
    state.add_media("matrix", "classes", partial(encode_matrix, np.eye(3), ""))
    writer.close()
    hook.on_end(state)
    rows = [row for row in Written(tmp_path).rows if row.keys() & {"val/samples", "val/worst"}]
    samples, worst = rows
    assert (samples["step"], worst["step"]) == (7, 7)
    (media,) = tmp_path.glob("wandb/offline-run-*/files/media")
    sent = np.asarray(Image.open(next(media.glob("images/val/samples_*.png"))))
    np.testing.assert_array_equal(sent, pixels.permute(1, 2, 0).numpy())
    table = json.loads(next(media.glob("table/val/worst_*.table.json")).read_text())
    assert (table["columns"], table["data"]) == (["word", "score"], [["a|b", 0.5]])
    assert len([*media.glob("images/val/classes_*.png")]) == 1
