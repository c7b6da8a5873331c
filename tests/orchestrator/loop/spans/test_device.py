import pytest
import torch

from orchestrator.loop.spans.device import DeviceSpan, DeviceTimestamp
from tests.device_stand_in import Device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    return device


def test_a_device_span_is_the_sum_of_its_pairs_and_waits_only_to_resolve(device: Device) -> None:
    span = DeviceSpan()
    for seconds in (2.0, 3.0):
        start = DeviceTimestamp([])
        device.work(seconds)
        span.add(start, DeviceTimestamp([]))
        device.work(5.0)
    assert not span.ready()
    assert device.now == 100.0
    assert [span.resolve(), span.resolve()] == [5.0, 5.0]
    assert device.now == 110.0


def test_adding_a_span_to_a_number_leaves_the_span_as_it_is(device: Device) -> None:
    start = DeviceTimestamp([])
    device.work(2.0)
    span = DeviceTimestamp([]) - start
    total = 3.0 + span
    assert [total.resolve(), span.resolve(), (3.0 + span).resolve()] == [5.0, 2.0, 5.0]
