"""What trackers send, and trackers whose package is missing."""

import logging
from collections.abc import Callable, Mapping

import pytest
import torch

from hooks import Hook, Plan, State
from hooks.logs.mlflow import MLflow
from hooks.logs.shared.tracker import Tracker
from hooks.logs.wandb import WandB
from hooks.media import MediaEntry
from orchestrator.loop.loop import Loop
from tests.hooks.phases import loss_rows, run_phase
from tests.tasks import Points, experiment


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
