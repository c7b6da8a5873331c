import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import orchestrator.runs.start
import orchestrator.sweeps.driver
import orchestrator.sweeps.in_process  # noqa: F401  # with the two others, all modules of a run
from hooks import HOOKS
from tests.every_key.outcome import describe_outcome


class Ticks:
    """A clock that advances at each reading, so that a run takes the same time each time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0**-10
        return self.now


@pytest.fixture(autouse=True)
def same_time(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """One clock for everything that measures time in a run; slow calls without a lasting effect do
    nothing."""
    ticks = Ticks()
    # A hook that is imported later would keep the real clock.
    assert all(HOOKS.values())
    monkeypatch.setattr(gc, "collect", lambda: 0)
    for name, module in list(sys.modules.items()):
        if (
            name.startswith(
                (
                    "hooks.",
                    "orchestrator.loop",
                    "orchestrator.disk.rows.recorder",
                    "orchestrator.sweeps",
                )
            )
            and "background" not in name
        ):
            for clock in ("perf_counter", "monotonic"):
                if hasattr(module, clock):
                    monkeypatch.setattr(module, clock, ticks)
    return ticks


Left = Callable[[Mapping[str, Any]], str]


@pytest.fixture
def left(tmp_path: Path, same_time: Ticks) -> Left:
    """What a run leaves, each in a folder of its own."""
    folders = (tmp_path / str(number) for number in range(1000))

    def left(experiment: Mapping[str, Any]) -> str:
        same_time.now = 0.0
        return describe_outcome(experiment, next(folders))

    return left
