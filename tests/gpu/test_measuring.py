"""What is measured on the device is what the device says itself."""

import pickle
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hooks import Hook, Priority, State
from hooks.interval import Interval
from hooks.stats.device_stats import DeviceStats
from hooks.stats.memory_snapshot import MemorySnapshot
from hooks.stats.memory_stats import MemoryStats
from hooks.stats.perf_stats import PerfStats
from orchestrator.column_names import SPANS
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.loop.step.transfer import make_transfer
from orchestrator.storage import Storage
from tests.gpu.tasks import loop_on
from tests.tasks import Points, Rows

pytestmark = pytest.mark.gpu


class Ends(Hook):
    """Takes an event of its own at the end of each training iteration, and what torch says of
    memory there."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.allocated: list[int] = []

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
            self.allocated.append(torch.cuda.memory_allocated(state.device))


class Wide(Points):
    """Takes the device a while, so that what lies between two events is no matter."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 4096), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 3)
        )


def seconds(value: Any) -> float:
    return float(value.resolve() if hasattr(value, "resolve") else value)


def test_the_spans_add_up_to_the_time_between_the_ends_of_iterations(device: torch.device) -> None:
    ends, rows = Ends(), Rows()
    task = Wide(train=400) if device.type == "cuda" else Points(train=400)
    list(
        loop_on(
            device, task, {"perf_stats": PerfStats(), "ends": ends}, recorder=rows, epochs=1
        ).run()
    )
    spans = [
        sum(seconds(row[name]) for name in SPANS if name in row)
        for row in rows.rows
        if row["phase"] == "train"
    ]
    if device.type == "cpu":
        assert spans == pytest.approx(
            [row["step_s"] for row in rows.rows if row["phase"] == "train"]
        )
        return
    torch.cuda.synchronize()
    outside = ends.events[10].elapsed_time(ends.events[-1]) / 1000
    assert sum(spans[11:]) == pytest.approx(outside, rel=0.02)
    steps = [seconds(row["step_s"]) for row in rows.rows if row["phase"] == "train"]
    assert spans == pytest.approx(steps, rel=1e-3, abs=1e-5)


class Heavy(Hook):
    """Gives the device far more work in each iteration than giving it takes."""

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self.product = torch.ones(8192, 8192, device=state.device) @ torch.ones(
                8192, 8192, device=state.device
            )


def test_step_time_is_the_device_time_where_the_host_is_ahead(cuda: torch.device) -> None:
    rows = Rows()
    list(loop_on(cuda, Points(train=96), {"heavy": Heavy()}, recorder=rows, epochs=1).run())
    host, device = (
        [seconds(row[name]) for row in rows.rows if row["phase"] == "train"][3:]
        for name in ("host_step_s", "step_s")
    )
    assert median(host) < median(device) / 2
    assert max(device) < 2 * median(device)


class Reads(Hook):
    """Waits in each iteration for all that was given to the device."""

    priority = Priority.LOWEST

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            torch.cuda.synchronize()


def test_waiting_hook_is_not_charged_for_earlier_work(cuda: torch.device, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0})
    list(
        loop_on(
            cuda,
            Points(train=96),
            {"heavy": Heavy(), "reads": Reads()},
            recorder=recorder,
            epochs=1,
        ).run()
    )
    seconds_of = {
        row["hook"]: row["seconds"]
        for row in open_recorded(storage, "costs").read().to_pylist()
        if row["event"] == "on_step"
    }
    assert seconds_of["reads"] < seconds_of["heavy"] / 2


def test_memory_columns_are_torch_s_own_numbers(device: torch.device) -> None:
    ends, rows = Ends(), Rows()
    list(
        loop_on(
            device,
            hooks={
                "memory": MemoryStats(every=Interval(1, "iterations"), min_seconds=0),
                "ends": ends,
            },
            recorder=rows,
            epochs=1,
        ).run()
    )
    measured = [row for row in rows.rows if row["phase"] == "train"]
    assert all(row["rss_bytes"] > 0 for row in measured)
    assert [row.get("cuda_allocated_bytes") for row in measured] == (
        ends.allocated or [None] * len(measured)
    )
    assert all(
        row["cuda_peak_allocated_bytes"] >= row["cuda_allocated_bytes"]
        for row in measured
        if ends.allocated
    )


def test_a_snapshot_of_memory_opens(device: torch.device, tmp_path: Path) -> None:
    list(
        loop_on(
            device,
            hooks={"memory_snapshot": MemorySnapshot(steps=(3,))},
            artifacts=tmp_path,
            epochs=1,
        ).run()
    )
    (text,) = tmp_path.rglob("rank=0-step=3.txt")
    assert "live tensors" in text.read_text()
    snapshots = list(tmp_path.rglob("*.pickle"))
    assert len(snapshots) == (device.type == "cuda")
    for file in snapshots:
        assert pickle.loads(file.read_bytes())["segments"]


def test_device_stats_agree_with_nvidia_smi(device: torch.device) -> None:
    pytest.importorskip("pynvml")
    rows = Rows()
    list(
        loop_on(
            device,
            hooks={"device_stats": DeviceStats(every=Interval(1, "iterations"))},
            recorder=rows,
            epochs=1,
        ).run()
    )
    row = rows.rows[-1]
    assert row["rss_bytes"] > 0
    if device.type == "cuda":
        query = [
            "nvidia-smi",
            f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}",
            "--query-gpu=temperature.gpu,clocks.max.sm",
            "--format=csv,noheader,nounits",
        ]
        temperature, most = map(
            float,
            subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(","),
        )
        assert row["gpu_temperature_c"] == pytest.approx(temperature, abs=10)
        assert 0 < row["gpu_sm_clock_mhz"] <= most


def test_page_locked_batches_are_copied_beside_the_work(cuda: torch.device) -> None:
    """A copy lies, on the device's own time line, within the work that was given before it."""
    move, work = make_transfer(cuda), torch.randn(8192, 8192, device=cuda)
    batch = [torch.randn(16, 1024, 1024).pin_memory()]
    move(batch)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(20):
            product = work @ work
        move(batch)
        torch.cuda.synchronize()
    del product
    events = [
        event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    copies = [event.time_range for event in events if "Memcpy HtoD" in event.name]
    products = [event.time_range for event in events if "gemm" in event.name.lower()]
    assert copies
    assert products
    assert copies[0].start < max(one.end for one in products)
