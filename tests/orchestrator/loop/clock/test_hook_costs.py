from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hooks import Hook, Priority, State
from hooks import plan as plan_module
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop import loop as loop_module
from orchestrator.loop.clock.span_clock import CudaClock
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.stats.read.reading import recorded
from orchestrator.stats.write.recorder import Recorder
from orchestrator.storage import Storage
from tests.device_stand_in import Device
from tests.tasks import Points, Seen, experiment


def test_what_saving_took_stands_beside_what_hooks_took(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    identity = {"rank": 0, "node": "n", "attempt": 0}
    loop = Loop(
        Points(),
        experiment(),
        {"seen": Seen()},
        RunContext(store=CheckpointStore(storage), recorder=Recorder(storage, "stats/attempt=0/rank=0", identity)),
    )
    reports = loop.run()
    next(reports)
    loop.save()
    reports.close()
    costs = recorded(storage, "costs").read().to_pylist()
    (saving,) = [row for row in costs if row["hook"] == "(loop)"]
    assert (saving["event"], saving["calls"], saving["epoch"], saving["step"]) == ("save", 1, 0, 7)
    assert saving["seconds"] > 0
    assert {row["hook"] for row in costs} == {"(loop)", "seen"}


class Works(Hook):
    """Gives the device two seconds of work, which takes the host a millisecond."""

    priority = Priority.HIGHEST

    def __init__(self, device: Device) -> None:
        self.device = device

    def on_step(self, state: State) -> None:
        self.device.work(2.0)
        self.device.now += 0.001


class Waits(Works):
    """Waits for all work, and then takes half a second itself."""

    priority = Priority.LOWEST

    def on_step(self, state: State) -> None:
        if state.iteration % 90 == 0:
            self.device.wait()
            self.device.now += 0.5


def test_a_hook_that_waits_for_the_device_is_not_charged_the_work_given_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the host's clock the one that waits would cost 180 s each time, and the one that gives work nothing."""
    device, storage = Device(), Storage(tmp_path)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(plan_module, "perf_counter", device)
    monkeypatch.setattr(loop_module, "clock_for", lambda of: CudaClock())
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0}, flush_rows=10)
    task = Points(train=8 * 270, val=0)
    list(
        Loop(
            task, experiment(epochs=1), {"works": Works(device), "waits": Waits(device)}, RunContext(recorder=recorder)
        ).run()
    )
    costs = {row["hook"]: row for row in recorded(storage, "costs").read().to_pylist() if row["event"] == "on_step"}
    assert {hook: row["calls"] for hook, row in costs.items()} == {"works": 270, "waits": 270}
    assert {hook: row["seconds"] for hook, row in costs.items()} == {
        "works": pytest.approx(540),
        "waits": pytest.approx(1.5),
    }
    # Neither the sums nor rows keep an event for each iteration.
    assert device.events < 2 * 270
