from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from hooks import Hook, State
from orchestrator.loop import training as training_module
from orchestrator.loop import training_loop
from orchestrator.loop.clock.span_clock import CudaClock
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.stats.read.dataset import open_recorded
from orchestrator.stats.write.recorder import Recorder
from orchestrator.storage import Storage
from tests.device_stand_in import Device
from tests.tasks import Points, experiment


class Fails(Hook):
    """Takes a second, gives the device in the third iteration what never ends, and fails in the fifth."""

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
    monkeypatch.setattr(training_module, "clock_for", lambda of: CudaClock())
    monkeypatch.setattr(training_loop, "DEVICE_TIMEOUT_S", 0.0)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0}, flush_s=3600)
    loop = Loop(Points(), experiment(), {"fails": Fails(device)}, RunContext(recorder=recorder))
    with pytest.raises(Exception, match="the disk is full"):
        list(loop.run())
    rows = open_recorded(storage, "rows").read().to_pylist()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(row["loss"] > 0 and "step_s" not in row for row in rows)
    assert "The last 4 rows of rank 0 are incomplete: its device had not finished computing them" in caplog.messages
    # Of what the hook took, the device has told two iterations.
    (cost,) = [row for row in open_recorded(storage, "costs").read().to_pylist() if row["event"] == "on_step"]
    assert (cost["calls"], cost["seconds"]) == (4, 2.0)
