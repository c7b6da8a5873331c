from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks import Hook, Interval, State
from orchestrator.column_names import SPANS
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving import run_checkpoints
from orchestrator.loop.spans import clock as clock_module
from orchestrator.loop.spans.clock import CudaClock, SpanClock
from orchestrator.loop.spans.device import DeviceSpan
from orchestrator.loop.spans.timestamps import INTERVALS
from orchestrator.loop.step.backward_timer import BackwardTimer
from orchestrator.storage import Storage
from tests.device_stand_in import Device
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, experiment


class Time:
    """A time that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock_module, "perf_counter", time)
    return time


def numbers_of(time: Time, clock: SpanClock, seconds: list[float], began: float) -> Sequence[float]:
    """What the clock gives for an iteration in which each interval took so many seconds."""
    marks = []
    for passed in seconds[:-1]:
        time.now += passed
        marks.append(clock.mark())
    time.now += seconds[-1]
    return clock.close({}, began, marks)


def columns(clock: SpanClock, *rows: Sequence[float]) -> dict[str, list[float]]:
    return {name: made(np.array(rows)).tolist() for name, made in clock.columns.items()}


def test_time_between_two_marks_counts_for_its_span(time: Time) -> None:
    clock = SpanClock()
    clock.recording = True
    seconds = [2.0**n for n in range(len(INTERVALS))]
    found = columns(clock, numbers_of(time, clock, seconds, clock.restart()))
    expected = {
        name: [sum(s for s, one in zip(seconds, INTERVALS, strict=True) if one == name)]
        for name in INTERVALS
    }
    assert found == {**expected, "checkpoint_s": [0.0], "step_s": [2.0 ** len(INTERVALS) - 1]}
    assert set(SPANS) | {"step_s"} == set(found)
    assert clock.iteration_s == 2.0 ** len(INTERVALS) - 1


def test_an_iteration_begins_where_the_last_one_ended(time: Time) -> None:
    clock = SpanClock()
    clock.recording = True
    first = numbers_of(time, clock, [1.0] * len(INTERVALS), clock.restart())
    time.now += 5.0
    second = numbers_of(time, clock, [1.0] * len(INTERVALS), first[-1])
    assert columns(clock, first, second)["step_s"] == [18.0, 23.0]
    assert columns(clock, first, second)["other_s"] == [1.0, 6.0]


def test_saving_and_waiting_between_iterations_count_once(time: Time) -> None:
    clock = SpanClock()
    clock.recording = True
    ended = clock.restart()
    time.now += 5.0
    clock.checkpoint_s += 3.0
    clock.waiting_s += 2.0
    first = numbers_of(time, clock, [0.5] * len(INTERVALS), ended)
    second = numbers_of(time, clock, [0.5] * len(INTERVALS), first[-1])
    found = columns(clock, first, second)
    assert (found["all_reduce_wait_s"], found["other_s"]) == ([2.5, 0.5], [0.5, 0.5])
    assert (found["checkpoint_s"], found["step_s"]) == ([3.0, 0.0], [14.0, 9.0])


def test_row_has_only_its_wall_time_without_recording(time: Time) -> None:
    clock = SpanClock()
    began = clock.restart()
    time.now += 3.0
    assert clock.mark() == 0.0
    assert columns(clock, clock.close({}, began, [0.0] * 17)) == {"step_s": [3.0]}
    assert clock.iteration_s == 3.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(clock_module, "perf_counter", device)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    return device


def test_event_is_reused_once_its_time_is_read(device: Device) -> None:
    clock = CudaClock()
    clock.recording, ended, rows = True, clock.restart(), []
    for _ in range(50):
        rows.append(row := {})
        ended = clock.close(row, ended, [clock.mark() for _ in INTERVALS[1:]])[-1]
        device.work(1.0)
        if len(rows) == 10:
            device.wait()
            assert sum(row["step_s"].resolve() for row in rows) == pytest.approx(10.0, abs=1.0)
            for value in (value for row in rows for value in row.values()):
                value.resolve()
            rows.clear()
    assert device.events <= 11 * len(INTERVALS)


def iterations_on(
    device: Device, *, saves_before: int = -1, waits_in: int = -1, recording: bool = True
) -> tuple[CudaClock, list[dict[str, Any]]]:
    """Clock and rows of five iterations: each interval takes a millisecond on the host and a second
    on the device."""
    clock, rows = CudaClock(), []
    clock.recording = recording
    ended = clock.restart()
    for iteration in range(5):
        if iteration == saves_before:
            device.wait()
            device.now += 100.0
            clock.checkpoint_s += 100.0
        marks = []
        for _ in INTERVALS[1:]:
            marks.append(clock.mark())
            device.now += 0.001
            device.work(1.0)
        if iteration == waits_in:
            device.wait()
        row: dict[str, Any] = {}
        times = clock.close(row, ended, marks)
        rows.append(
            row | {name: made(np.array([times]))[0] for name, made in clock.columns.items()}
        )
        ended = times[-1]
    return clock, [
        {
            name: value.resolve() if isinstance(value, DeviceSpan) else value
            for name, value in row.items()
        }
        for row in rows
    ]


WORK = len(INTERVALS) - 1
"""Seconds of the device's in an iteration."""


def test_device_step_lasts_from_end_to_end_however_far_the_host_is_ahead(device: Device) -> None:
    _, rows = iterations_on(device, waits_in=3)
    # The host gives four iterations in no time, and waits in the last of them for all.
    assert [row["host_step_s"] for row in rows] == pytest.approx(
        [0.001 * WORK] * 3 + [4 * WORK - 3 * 0.001 * WORK + 0.001, 0.001 * WORK]
    )
    assert [row["step_s"] for row in rows] == pytest.approx(
        [WORK + 0.001, *[WORK] * 3, WORK + 0.001]
    )
    for row in rows:
        assert sum(row[name] for name in SPANS) == pytest.approx(row["step_s"])
        assert [row[name] for name in ("data_wait_s", "hooks_s")] == pytest.approx(
            [1, INTERVALS.count("hooks_s")], abs=0.002
        )


def test_device_wait_for_a_checkpoint_is_in_checkpoint_s(device: Device) -> None:
    _, rows = iterations_on(device, saves_before=2)
    assert [row["checkpoint_s"] for row in rows] == pytest.approx([0, 0, 100, 0, 0])
    assert [row["step_s"] for row in rows] == pytest.approx(
        [WORK + 0.001, WORK, WORK + 100.001, WORK, WORK], abs=0.002
    )


def test_iteration_s_is_that_of_the_last_measured_iteration(device: Device) -> None:
    """Until one is, the host's time of the first does; without spans too."""
    assert iterations_on(device, recording=False)[0].iteration_s == pytest.approx(0.001 * WORK)
    clock, rows = iterations_on(device, waits_in=3, recording=False)
    assert clock.iteration_s == pytest.approx(WORK, abs=0.002)
    assert {*rows[0]} == {"step_s", "host_step_s"}


class Dawdles(Hook):
    """Takes a second after the second step, two to save what it asks for there, and four as a
    validation begins."""

    def __init__(self, time: Time) -> None:
        self.time = time

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step == 2:
            self.time.now += 1.0
            state.request_checkpoint("a test")

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self.time.now += 2.0

    def on_phase_start(self, state: State) -> None:
        if state.phase == "val":
            self.time.now += 4.0


def test_hooks_saving_and_validation_are_not_in_data_wait_s(
    time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MMEngine's timer charges them to the data of the next iteration."""
    monkeypatch.setattr(run_checkpoints, "perf_counter", time)
    rows, store = Rows(), CheckpointStore(Storage(tmp_path))
    given = experiment(epochs=1, validate_every=Interval(4, "steps"))
    loop = Loop(Points(), given, {"dawdles": Dawdles(time)}, RunContext(recorder=rows, store=store))
    loop.training.clock.recording = True
    list(loop.run())
    columns = rows.columns("hooks_s", "checkpoint_s", "data_wait_s", "step_s", phase="train")
    assert columns == [(0, 0, 0, 0), (1, 0, 0, 1), (0, 2, 0, 2), *[(0, 0, 0, 0)] * 4]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "accumulated": {"accumulate": 2},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "buckets": {"bucket_cap_mb": 0.001},
}


class Net(nn.Module):
    """Two layers, and one that is left out where asked."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skipped, self.first, self.last = nn.Linear(32, 32), nn.Linear(5, 32), nn.Linear(32, 3)
        self.skip = skip

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.first(points).relu()
        return self.last(hidden if self.skip else self.skipped(hidden).relu())


def _gradients(
    rank: int, looked_on: bool, accumulate: int = 1, dtype: Any = None, **options: Any
) -> tuple[list[Any], int]:
    """The gradients of three steps, and how many passes had a mark between their beginning and
    their end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Net("find_unused_parameters" in options), broadcast_buffers=False, **options
    )
    clock, found, marks = SpanClock(), [], 0
    clock.recording = True
    own = BackwardTimer(model, clock) if looked_on else None
    draw = torch.Generator().manual_seed(rank)
    for iteration in range(3 * accumulate):
        exchanged = (iteration + 1) % accumulate == 0
        with nullcontext() if exchanged else model.no_sync():
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = model(torch.randn(8, 5, generator=draw)).square().mean()
            began = perf_counter()
            loss.backward()
        marks += own is not None and began < own.take(0.0) <= perf_counter()
        if exchanged:
            found.append([None if p.grad is None else p.grad.tolist() for p in model.parameters()])
            model.zero_grad()
    return found, marks


def _gradients_in_all_ways(rank: int, world_size: int) -> dict[str, Any]:
    return {
        way: [_gradients(rank, looked_on, **options) for looked_on in (False, True)]
        for way, options in WAYS.items()
    }


def _without_recording(rank: int, world_size: int) -> float:
    model = DistributedDataParallel(Net(False), broadcast_buffers=False)
    own = BackwardTimer(model, SpanClock())
    model(torch.ones(8, 5)).sum().backward()
    return float(own.take(-1.0))


def _timestamps(rank: int, world_size: int) -> list[float]:
    """Seconds at which a pass begins, is marked and ends, where rank 1 begins only once rank 0 has
    its mark."""
    model, clock = DistributedDataParallel(Net(False), broadcast_buffers=False), SpanClock()
    clock.recording, timer, store = (
        True,
        BackwardTimer(model, clock),
        dist.distributed_c10d._get_default_store(),
    )

    def mark() -> float:
        now = perf_counter()
        store.set(f"marked by {rank}", "")
        return now

    clock.moment = mark
    loss = model(torch.ones(8, 5)).sum()
    if rank == 1:
        store.wait(["marked by 0"])
    began = perf_counter()
    loss.backward()
    ended = perf_counter()
    return [began, timer.take(ended), ended]


def _on_rank(rank: int, world_size: int) -> tuple[dict[str, Any], float, list[float]]:
    return (
        _gradients_in_all_ways(rank, world_size),
        _without_recording(rank, world_size),
        _timestamps(rank, world_size),
    )


def test_wait_is_measured_and_gradients_equal_those_of_ddp() -> None:
    (own, unmarked, (began, marked, ended)), (other, _, (late_began, late_marked, late_ended)) = (
        on_ranks(_on_rank)
    )
    for way in WAYS:
        (without, _), (gradients, marks) = own[way]
        assert gradients == without, way
        assert gradients == other[way][1][0], way
        assert marks == 3 * WAYS[way].get("accumulate", 1), way
    assert unmarked == -1.0
    assert began < marked < late_began < ended, "rank 0 waits after its mark"
    assert late_began < late_marked <= late_ended
