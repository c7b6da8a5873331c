from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.loop import clock as clock_module
from orchestrator.loop.clock import BACKWARD, FORWARD, SPANS, Clock, DeviceSpan, clock_for


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


def test_each_lap_is_charged_to_its_span_and_the_rest_to_other(time: Time) -> None:
    clock, row = Clock(), {}
    clock.recording = True
    for span, seconds in [(FORWARD, 1.0), (BACKWARD, 2.0), (FORWARD, 4.0)]:
        time.now += seconds
        clock.lap(span)
    time.now += 8.0
    clock.close(row)
    assert row == {
        "data_wait_s": 0,
        "to_device_s": 0,
        "forward_s": 5.0,
        "loss_s": 0,
        "backward_s": 2.0,
        "optimizer_s": 0,
        "hooks_s": 0,
        "checkpoint_s": 0,
        "other_s": 8.0,
        "step_s": 15.0,
    }
    assert clock.iteration_s == 15.0


def test_an_iteration_begins_where_the_last_one_ended(time: Time) -> None:
    clock, first, second = Clock(), {}, {}
    clock.recording = True
    time.now += 1.0
    clock.close(first)
    time.now += 2.0
    clock.lap(FORWARD)
    clock.close(second)
    assert (first["step_s"], second["step_s"], second["forward_s"], second["other_s"]) == (1.0, 2.0, 2.0, 0.0)


def test_restart_leaves_out_what_came_before(time: Time) -> None:
    clock, row = Clock(), {}
    clock.recording = True
    time.now += 50.0
    clock.lap(FORWARD)
    clock.restart()
    time.now += 1.0
    clock.close(row)
    assert (row["step_s"], row["forward_s"]) == (1.0, 0.0)


def test_without_recording_a_row_has_its_wall_time_and_no_spans(time: Time) -> None:
    clock, row = Clock(), {"loss": 1.0}
    time.now += 3.0
    clock.close(row)
    assert row == {"loss": 1.0, "step_s": 3.0}
    assert clock.iteration_s == 3.0


def test_spans_add_up_to_the_wall_time_on_a_real_clock() -> None:
    clock = Clock()
    clock.recording = True
    for _ in range(50):
        row: dict[str, Any] = {}
        for span in range(len(SPANS) - 1):
            clock.lap(span)
        clock.close(row)
        assert sum(row[name] for name in SPANS) == pytest.approx(row["step_s"], rel=1e-6, abs=1e-9)
        assert min(row.values()) >= 0


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
        span.add(*pair)  # type: ignore[arg-type]
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
