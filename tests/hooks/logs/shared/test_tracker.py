"""The sender: order, failures, a server that never answers; and trackers whose package is
missing."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch

from hooks import Hook, Plan, State
from hooks.logs.mlflow import MLflow
from hooks.logs.shared import tracker as sender
from hooks.logs.shared.tracker import BackgroundSender, Tracker
from hooks.logs.wandb import WandB
from hooks.media import MediaEntry
from orchestrator.loop.loop import Loop
from tests.hooks.phases import loss_rows, run_phase
from tests.tasks import Points, experiment


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Held back until it is set, and set after the test in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_jobs_are_done_in_order_by_another_thread(gate: threading.Event) -> None:
    done: list[object] = []
    box = BackgroundSender("tracker")
    box.put(gate.wait)
    for job in range(100):
        box.put(lambda job=job: done.append(job))
    box.put(lambda: done.append(threading.current_thread().name))
    assert done == [], "nobody waited for the first job"
    gate.set()
    box.close(60)
    assert done == [*range(100), "tracker-sender"]


def test_failure_is_logged_once_and_later_jobs_run(caplog: pytest.LogCaptureFixture) -> None:
    done = []

    def fails() -> None:
        raise ConnectionError("no server there")

    box = BackgroundSender("tracker")
    with caplog.at_level(logging.WARNING, "hookyard"):
        for job in (fails, fails, lambda: done.append("last")):
            box.put(job)
        box.close(60)
    assert done == ["last"]
    assert caplog.messages == [
        "tracker: an update was not sent; the run continues: ConnectionError: no server there",
        "tracker: 2 updates were not sent",
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
    box.put(lambda: None)
    with caplog.at_level(logging.WARNING, "hookyard"):
        box.close(0)
    assert "tracker: 2 updates were not sent" in caplog.text


def test_queue_of_the_sender_is_bounded(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MOST_WAITING", 3)
    box = hung_sender(gate)
    done = []
    with caplog.at_level(logging.WARNING, "hookyard"):
        for job in range(5):
            box.put(lambda job=job: done.append(job))
    gate.set()
    box.close(60)
    assert done == [0, 1, 2]
    assert "3 messages are waiting already" in caplog.text


class Noted(Tracker):
    """Keeps the epoch of all that is sent, and the kinds of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epochs: list[tuple[str, int]] = []

    def on_start(self, state: State) -> None:
        self.open("noted", state, lambda: None)

    def log(self, values: Mapping[str, float], position: Mapping[str, int], time_s: float) -> None:
        self.epochs += [(name, position["epoch"]) for name in values if "/loss" in name]

    def log_media(self, entry: MediaEntry, data: bytes) -> None:
        self.epochs.append((entry.name, entry.epoch))

    def note(self, name: str, value: str) -> None:
        pass

    def finish(self, *, failed: bool) -> None:
        pass


class Draws(Hook):
    """Records an image in each validation."""

    def on_step(self, state: State) -> None:
        if state.phase == "val":
            state.record_image("image", torch.zeros(2, 2))


def test_metrics_have_the_epoch_of_their_rows_and_images() -> None:
    """Counted from 0, as in a run's own tables."""
    noted = Noted()
    list(Loop(Points(), experiment(), {"noted": noted, "draws": Draws()}).run())
    kinds = ("train/loss", "val/image", "val/loss")
    assert sorted({*noted.epochs}) == [(kind, epoch) for kind in kinds for epoch in (0, 1)]


@pytest.mark.parametrize(("name", "make"), [("mlflow", MLflow), ("wandb", WandB)])
def test_missing_package_error_names_the_extra(
    name: str,
    make: Callable[[], Hook],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(f"hooks.logs.{name}.find_spec", lambda package: None)
    hook = make()
    state = State()
    with caplog.at_level(logging.WARNING, "hookyard"):
        Plan({name: hook}).fire("on_start", state)
    run_phase(hook, state, "train", loss_rows(1), metrics={"train/loss": 1.0})
    hook.on_end(state)
    assert f"pip install 'hookyard[{name}]'" in caplog.text
