from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hooks import Hook, Rhythm, State
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop import rounds
from orchestrator.loop import span_clock as clock_module
from orchestrator.loop.loop import Loop
from orchestrator.loop.span_clock import INTERVALS, Clock, CudaClock, DeviceSpan, clock_for, spans
from orchestrator.stats.spans import SPANS
from orchestrator.storage import Storage
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


def numbers_of(time: Time, clock: Clock, seconds: list[float], began: float) -> Sequence[float]:
    """What the clock gives for an iteration in which each interval took so many seconds."""
    marks = []
    for passed in seconds[:-1]:
        time.now += passed
        marks.append(clock.mark())
    time.now += seconds[-1]
    return clock.close({}, began, marks)


def columns(*rows: Sequence[float]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in spans(np.array(rows)).items()}


def test_the_time_between_two_marks_is_charged_to_the_span_it_belongs_to(time: Time) -> None:
    clock = Clock()
    clock.recording = True
    seconds = [2.0**n for n in range(len(INTERVALS))]
    found = columns(numbers_of(time, clock, seconds, clock.restart()))
    expected = {name: [sum(s for s, one in zip(seconds, INTERVALS, strict=True) if one == name)] for name in INTERVALS}
    assert found == {**expected, "checkpoint_s": [0.0], "step_s": [2.0 ** len(INTERVALS) - 1]}
    assert set(SPANS) | {"step_s"} == set(found)
    assert clock.iteration_s == 2.0 ** len(INTERVALS) - 1


def test_an_iteration_begins_where_the_last_one_ended(time: Time) -> None:
    clock = Clock()
    clock.recording = True
    first = numbers_of(time, clock, [1.0] * len(INTERVALS), clock.restart())
    time.now += 5.0
    second = numbers_of(time, clock, [1.0] * len(INTERVALS), first[-1])
    assert columns(first, second)["step_s"] == [18.0, 23.0]
    assert columns(first, second)["other_s"] == [1.0, 6.0]


def test_saving_is_no_work_of_the_loop_and_counts_once(time: Time) -> None:
    clock = Clock()
    clock.recording = True
    ended = clock.restart()
    time.now += 3.0
    clock.checkpoint_s += 3.0
    first = numbers_of(time, clock, [0.5] * len(INTERVALS), ended)
    second = numbers_of(time, clock, [0.5] * len(INTERVALS), first[-1])
    found = columns(first, second)
    assert (found["checkpoint_s"], found["other_s"], found["step_s"]) == ([3.0, 0.0], [0.5, 0.5], [12.0, 9.0])


def test_waiting_between_iterations_is_added_to_that_in_them_and_counts_once(time: Time) -> None:
    clock = Clock()
    clock.recording = True
    ended = clock.restart()
    time.now += 5.0
    clock.checkpoint_s += 3.0
    clock.waiting_s += 2.0
    first = numbers_of(time, clock, [0.5] * len(INTERVALS), ended)
    second = numbers_of(time, clock, [0.5] * len(INTERVALS), first[-1])
    found = columns(first, second)
    assert (found["all_reduce_wait_s"], found["other_s"]) == ([2.5, 0.5], [0.5, 0.5])
    assert (found["checkpoint_s"], found["step_s"]) == ([3.0, 0.0], [14.0, 9.0])


def test_restart_leaves_out_what_came_before(time: Time) -> None:
    clock = Clock()
    clock.recording = True
    clock.checkpoint_s, clock.waiting_s = 7.0, 2.0
    time.now += 50.0
    found = columns(numbers_of(time, clock, [1.0] + [0.0] * (len(INTERVALS) - 1), clock.restart()))
    assert (found["step_s"], found["other_s"], found["checkpoint_s"]) == ([1.0], [1.0], [0.0])
    assert found["all_reduce_wait_s"] == [0.0]


def test_without_recording_a_row_has_its_wall_time_and_no_spans(time: Time) -> None:
    clock = Clock()
    began = clock.restart()
    time.now += 3.0
    assert clock.mark() == 0.0
    assert columns(clock.close({}, began, [0.0] * 17)) == {"step_s": [3.0]}
    assert clock.iteration_s == 3.0


def test_spans_add_up_to_the_wall_time_on_a_real_clock() -> None:
    clock = Clock()
    clock.recording = True
    ended, rows = clock.restart(), []
    for _ in range(50):
        rows.append(clock.close({}, ended, [clock.mark() for _ in INTERVALS[1:]]))
        ended = rows[-1][-1]
    found = spans(np.array(rows))
    assert sum(found[name] for name in SPANS) == pytest.approx(found["step_s"], rel=1e-6, abs=1e-9)
    assert min(values.min() for values in found.values()) >= 0


def test_the_cpu_has_the_clock_without_events() -> None:
    assert type(clock_for(torch.device("cpu"))) is Clock


class Event:
    """A CUDA event that the device passes when told; milliseconds like torch's."""

    def __init__(self, at_ms: float, passed: bool = False) -> None:
        self.at_ms, self.passed, self.waited = at_ms, passed, False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waited = self.passed = True

    def elapsed_time(self, end: Event) -> float:
        assert end.passed, "torch raises where the end is not passed"
        return end.at_ms - self.at_ms


def device_span(*pairs: tuple[Event, Event]) -> DeviceSpan:
    span = DeviceSpan()
    for pair in pairs:
        span.add(*pair)
    return span


def test_a_device_span_is_the_sum_of_its_pairs_in_seconds() -> None:
    span = device_span((Event(10.0), Event(30.0, passed=True)), (Event(100.0), Event(105.0, passed=True)))
    assert span.ready()
    assert span.resolve() == pytest.approx(0.025)


def test_a_device_span_is_ready_when_its_last_event_is_passed_and_waits_only_to_resolve() -> None:
    last = Event(40.0)
    span = device_span((Event(10.0), Event(30.0, passed=True)), (Event(30.0), last))
    assert not span.ready()
    assert not last.waited
    assert span.resolve() == pytest.approx(0.03)
    assert last.waited


def test_a_device_span_without_events_is_nothing() -> None:
    assert DeviceSpan().ready()
    assert DeviceSpan().resolve() == 0.0


class Stamp(Event):
    """An event that stands at the time at which it was recorded, and is passed."""

    def __init__(self, time: Time) -> None:
        super().__init__(1000 * time.now, passed=True)

    def record(self) -> None:
        pass


def test_on_a_device_marks_become_spans_between_events_and_wall_time_stays_the_hosts(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Stamp(time))
    clock, rows = CudaClock(), []
    clock.recording = True
    ended = clock.restart()
    for saving in (0.0, 100.0, 0.0):
        row: dict[str, Any] = {}
        time.now += saving
        clock.checkpoint_s += saving
        marks = []
        for passed in range(1, len(INTERVALS)):
            time.now += passed
            marks.append(clock.mark())
        time.now += 10.0
        times = clock.close(row, ended, marks)
        rows.append({name: value if name == "checkpoint_s" else value.resolve() for name, value in row.items()} | columns_of(times))
        ended = times[-1]
    work = sum(range(2, len(INTERVALS))) + 10.0
    # The first iteration and the one after saving begin at their first mark, the third where the second ended.
    assert [sum(row[name] for name in SPANS) - row["checkpoint_s"] for row in rows] == [work, work, work + 1]
    assert [row["checkpoint_s"] for row in rows] == [0.0, 100.0, 0.0]
    assert [row["step_s"] for row in rows] == [work + 1, work + 101, work + 1]
    assert [row["data_wait_s"] for row in rows] == [3.0, 3.0, 3.0]


def columns_of(times: Sequence[float]) -> dict[str, float]:
    return {name: values[0] for name, values in columns(times).items()}


class Dawdles(Hook):
    """Takes a second after the second step, two to save what it asks for there, and four as a validation begins."""

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


def test_hooks_saving_and_validation_are_no_wait_for_data(time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MMEngine's timer charges them to the data of the next iteration."""
    monkeypatch.setattr(rounds, "perf_counter", time)
    rows, store = Rows(), CheckpointStore(Storage(tmp_path))
    given = experiment(epochs=1, validate_every=Rhythm(4, "steps"))
    loop = Loop(Points(), given, {"dawdles": Dawdles(time)}, recorder=rows, store=store)
    loop.clock.recording = True
    list(loop.run())
    columns = rows.columns("hooks_s", "checkpoint_s", "data_wait_s", "step_s", phase="train")
    assert columns == [(0, 0, 0, 0), (1, 0, 0, 1), (0, 2, 0, 2), *[(0, 0, 0, 0)] * 4]
