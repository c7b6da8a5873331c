import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import Hook, State
from orchestrator import Experiment, run
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import StorageError
from orchestrator.loop import base_loop, building
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.spans.clock import CudaClock
from orchestrator.storage import Storage
from tests.device_stand_in import Device
from tests.tasks import Points, experiment


class Fails(Hook):
    """Takes a second, gives the device in the third iteration what never ends, and fails in the
    fifth."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def on_step(self, state: State) -> None:
        self.device.now += 1.0
        if state.iteration == 3:
            self.device.work(math.inf)
        if state.iteration == 5:
            raise OSError("the disk is full")


def test_failed_run_does_not_wait_for_a_stuck_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, storage = Device(), Storage(tmp_path)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(building, "make_clock", lambda of: CudaClock())
    monkeypatch.setattr(base_loop, "DEVICE_TIMEOUT_S", 0.0)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0}, flush_s=3600)
    loop = Loop(Points(), experiment(), {"fails": Fails(device)}, RunContext(recorder=recorder))
    with pytest.raises(Exception, match="the disk is full"):
        list(loop.run())
    rows = open_recorded(storage, "rows").read().to_pylist()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(row["loss"] > 0 and "step_s" not in row for row in rows)
    assert (
        "The last 4 rows of rank 0 are incomplete: its device had not finished computing them"
        in caplog.messages
    )
    # Of what the hook took, the device has told two iterations.
    (cost,) = [
        row
        for row in open_recorded(storage, "costs").read().to_pylist()
        if row["event"] == "on_step"
    ]
    assert (cost["calls"], cost["seconds"]) == (4, 2.0)


class FullMedia(MediaWriter):
    """A writer of media whose disk is full."""

    def flush(self) -> None:
        raise StorageError("the disk is full")


class Ends(Hook):
    """Notes its last events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_end(self, state: State) -> None:
        self.events.append("on_end")

    def on_exception(self, state: State, error: BaseException) -> None:
        self.events.append("on_exception")


@pytest.mark.parametrize("is_closed", [False, True])
def test_run_whose_media_cannot_be_written_ends_with_all_events(is_closed: bool) -> None:
    """Whether it trains to its end, or the caller ends it."""
    ends = Ends()
    loop = Loop(Points(), experiment(), {"ends": ends}, RunContext(media=FullMedia()))
    reports = loop.run()
    next(reports)
    with pytest.raises(StorageError, match="the disk is full"):
        reports.close() if is_closed else list(reports)
    assert ends.events == ["on_end", "on_exception"]


@pytest.mark.parametrize("counts", [1, 2])
def test_run_ends_at_the_report_at_which_the_caller_requests_it(counts: int) -> None:
    ends = Ends()
    loop = Loop(Points(test=9), experiment(epochs=2), {"ends": ends})
    iterations = []
    for report in loop.run():
        iterations.append(report.metrics["iteration"])
        if len(iterations) == counts:
            loop.request_end(report.run_index)
    # 52 samples in batches of 8 are 7 iterations an epoch; a run that ends at its last report does not test.
    assert iterations == [7, 14][:counts]
    assert loop.runs[0].ended_at == iterations[-1]
    assert ends.events == ["on_end"]


@dataclass
class Recording(Points):
    """Records the places of the samples of each batch, summed, in every method that sees a
    batch."""

    train: int = 20
    val: int = 10
    test: int = 6

    def forward(self, model: nn.Module, batch: Any) -> Any:
        self.progress.record(in_forward=batch[2].sum())
        return super().forward(model, batch)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        self.progress.record(
            in_loss=batch[2].sum(), with_graph=output.mean(), plain=float(len(output))
        )
        return super().loss(output, batch)

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        self.progress.record(in_metrics=int(batch[2].sum()))
        return super().metrics(output, batch)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_values_recorded_by_a_task_are_columns_in_each_phase(
    tmp_path: Path, accumulate: int
) -> None:
    settings = {"batch_size": 8, "accumulate": accumulate, "optimizer": {"type": "SGD", "lr": 0.1}}
    rows = run(Experiment(task=Recording, epochs=2, **settings), tmp_path, local=True).stats
    for phase, samples in {"train": 20, "val": 10, "test": 6}.items():
        here = rows[rows["phase"] == phase]
        epochs = 1 if phase == "test" else 2
        assert (
            here["plain"].tolist()
            == here["batch_size"].tolist()
            == ([8.0] * (samples // 8) + [samples % 8]) * epochs
        )
        for name in ("in_forward", "in_loss", "in_metrics"):
            assert here[name].sum() == epochs * sum(range(samples))
    assert rows["with_graph"].notna().all()
