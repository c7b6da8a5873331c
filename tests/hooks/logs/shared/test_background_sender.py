"""The sender: order, failures, and a server that never answers."""

import logging
import threading
from collections.abc import Iterator

import pytest

from hooks.logs.shared import background_sender
from hooks.logs.shared.background_sender import BackgroundSender


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Held back until it is set, and set after the test in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def do_nothing() -> None: ...


def test_jobs_are_done_in_order_by_another_thread(gate: threading.Event) -> None:
    done: list[object] = []
    box = BackgroundSender("tracker")
    box.put(gate.wait)
    for job in range(100):
        box.put(lambda job=job: done.append(job))
    box.put(lambda: done.append(threading.current_thread().name))
    assert done == [], "nobody waited for the first job"
    gate.set()
    box.close(do_nothing, 60)
    assert done == [*range(100), "tracker-sender"]


def test_failure_is_logged_once_and_later_jobs_run(caplog: pytest.LogCaptureFixture) -> None:
    done = []

    def fails() -> None:
        raise ConnectionError("no server there")

    def exits() -> None:
        raise SystemExit(1)

    box = BackgroundSender("tracker")
    with caplog.at_level(logging.WARNING, "hookyard"):
        for job in (fails, exits):
            box.put(job)
        box.close(lambda: done.append("last"), 60)
    assert done == ["last"]
    assert caplog.messages == [
        "tracker: an update was not sent; the run continues: ConnectionError: no server there",
        "tracker did not send 2 updates",
    ]


def hung_sender(gate: threading.Event) -> BackgroundSender:
    """A sender whose first job waits for the gate."""
    started = threading.Event()
    box = BackgroundSender("tracker")

    def hangs() -> None:
        started.set()
        gate.wait()

    box.put(hangs)
    assert started.wait(60)
    return box


def test_silent_server_does_not_delay_the_end_of_the_run(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    box = hung_sender(gate)
    box.put(do_nothing)
    with caplog.at_level(logging.WARNING, "hookyard"):
        box.close(do_nothing, 0)
    assert "tracker did not send 3 updates" in caplog.text


def test_queue_of_the_sender_is_bounded(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_sender, "MOST_WAITING", 3)
    box = hung_sender(gate)
    done = []
    with caplog.at_level(logging.WARNING, "hookyard"):
        for job in range(5):
            box.put(lambda job=job: done.append(job))
    gate.set()
    box.close(do_nothing, 60)
    assert done == [0, 1, 2]
    assert "3 messages are waiting already" in caplog.text


def test_jobs_in_a_full_queue_and_the_one_in_progress_are_counted_at_the_end(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_sender, "MOST_WAITING", 3)
    box = hung_sender(gate)
    for _ in range(3):
        box.put(do_nothing)
    with caplog.at_level(logging.WARNING, "hookyard"):
        box.close(do_nothing, 0.01)
    assert caplog.messages == ["tracker did not send 5 updates"]


def test_last_job_waits_for_a_place_in_a_full_queue(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_sender, "MOST_WAITING", 3)
    box = hung_sender(gate)
    done: list[object] = []
    for job in range(3):
        box.put(lambda job=job: done.append(job))
    threading.Timer(0.1, gate.set).start()
    with caplog.at_level(logging.WARNING, "hookyard"):
        box.close(lambda: done.append("last"), 60)
    assert done == [0, 1, 2, "last"]
    assert caplog.messages == []
