from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from orchestrator.disk.rows import device_values, values
from orchestrator.disk.rows.device_values import DeviceValues
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.storage import Storage


class Gpu:
    """Replacement of a GPU and its streams: records calls; work completes when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.passed = False
        self.looks = 0
        """How often it was asked whether it has passed a mark."""

    def record_event(self) -> "Gpu":
        self.asked.append("mark the training's stream")
        return self

    def query(self) -> bool:
        self.looks += 1
        return self.passed or self.looks == 3

    def wait_event(self, event: "Gpu") -> None:
        self.asked.append("wait for the mark on another")

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.asked.append("begin")
        yield
        self.asked.append("end")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    for module in (device_values, values):
        monkeypatch.setattr(module, "is_on_gpu", lambda value: isinstance(value, Tensor))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream.entered())
    return gpu


def test_gpu_values_are_copied_in_one_transfer_on_their_own_stream(gpu: Gpu) -> None:
    rows: list[dict[str, Any]] = [
        {"loss": torch.tensor(1.5), "step": 3, "count": torch.tensor([7])},
        {"loss": torch.tensor(2.5), "count": torch.tensor(2**40)},
    ]
    values = DeviceValues(rows)
    assert not values.ready()
    values.read()
    assert rows == [{"loss": 1.5, "step": 3, "count": 7.0}, {"loss": 2.5, "count": 2.0**40}]
    assert gpu.asked == [
        "mark the training's stream",
        "wait for the mark on another",
        "begin",
        "end",
    ]


def test_flush_skips_values_that_the_gpu_has_not_computed(gpu: Gpu, tmp_path: Any) -> None:
    recorder = Recorder(
        Storage(tmp_path), "stats/attempt=0/rank=0", {"rank": 0}, flush_rows=2, flush_s=3600
    )
    recorder.begin({"phase": "train"}, {"iteration": lambda numbers: numbers[:, 0]})
    for iteration in range(4):
        recorder.append({"loss": torch.tensor(float(iteration))}, (float(iteration), 0.0))
        gpu.passed = iteration == 3
    assert gpu.asked == ["mark the training's stream"] * 2
    recorder.close()
    assert gpu.asked[2:] == ["wait for the mark on another", "begin", "end"] * 2
    assert open_recorded(Storage(tmp_path), "rows").read()["loss"].to_pylist() == [
        0.0,
        1.0,
        2.0,
        3.0,
    ]


def test_rows_without_gpu_values_do_not_touch_the_gpu(gpu: Gpu) -> None:
    values = DeviceValues([{"loss": 1.0, "text": "x"}])
    assert values.ready()
    values.read()
    assert gpu.asked == []


def closed_with_a_row(folder: Any, within_s: float) -> tuple[Recorder, Any]:
    """A recorder that is told to flush_within, and then that the GPU is lost; and what it wrote."""
    folder.mkdir()
    recorder = Recorder(Storage(folder), "stats/attempt=0/rank=0", {"rank": 0})
    recorder.begin({"phase": "train"}, {"iteration": lambda numbers: numbers[:, 0]})
    recorder.append({"loss": torch.tensor(0.5), "note": 7}, (1.0, 0.0))
    recorder.flush_within(within_s)
    recorder.drop_device_values()
    recorder.close()
    return recorder, open_recorded(Storage(folder), "rows").read().to_pylist()


def test_failed_rank_keeps_gpu_values_computed_in_time(gpu: Gpu, tmp_path: Any) -> None:
    recorder, (row,) = closed_with_a_row(tmp_path / "in time", 3600.0)
    assert (gpu.looks, row["loss"], recorder.incomplete_rows) == (3, 0.5, 0)
    gpu.looks = 10
    recorder, (row,) = closed_with_a_row(tmp_path / "too late", 0.0)
    assert (row["iteration"], row["note"], "loss" in row, recorder.incomplete_rows) == (
        1.0,
        7,
        False,
        1,
    )
    assert gpu.asked.count("begin") == 1


def test_values_of_a_lost_gpu_are_left_out(
    gpu: Gpu, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread ends what the GPU waits for, and what comes over then may be anything."""
    monkeypatch.setattr(gpu, "wait_event", lambda mark: recorder.drop_device_values())
    recorder = Recorder(Storage(tmp_path), "stats/attempt=0/rank=0", {"rank": 0})
    recorder.begin({"phase": "train"}, {"iteration": lambda numbers: numbers[:, 0]})
    recorder.append({"loss": torch.tensor(0.5)}, (1.0, 0.0))
    recorder.close()
    (row,) = open_recorded(Storage(tmp_path), "rows").read().to_pylist()
    assert ("loss" in row, row["iteration"], recorder.incomplete_rows) == (False, 1.0, 1)
