import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Run, Sweep, run, sweep
from orchestrator.runs import alert_delivery, launch
from tests.orchestrator.runs.alert_server import Server
from tests.tasks import described


class AskedAfter:
    """In place of Interrupts: asked once the loop has looked a number of times."""

    looks = 0

    def __init__(self, how_to_resume: str) -> None:
        self.looked = 0

    def __enter__(self) -> "AskedAfter":
        return self

    def __exit__(self, *error: object) -> None: ...

    @property
    def requested(self) -> bool:
        self.looked += threading.current_thread() is threading.main_thread()
        return self.looked >= self.looks

    def fail(self, why: str) -> None: ...


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs or resumes, and asks for an end once the loop has looked a number of times."""

    def interrupted(looks: int, begin: Callable[..., Run], *arguments: Any, **options: Any) -> Run:
        with monkeypatch.context() as patch:
            patch.setattr(launch, "Interrupts", type("AskedAfter", (AskedAfter,), {"looks": looks}))
            return begin(*arguments, **options)

    return interrupted


@pytest.fixture
def outcome(tmp_path: Path) -> Sweep:
    """A sweep over two learning rates, the second of which is better."""
    settings = {
        "metric": "val/loss",
        "search": "grid",
        "space": {"optimizer.lr": {"grid": [0.001, 0.1]}},
    }
    return sweep(described(epochs=1, sweep=settings), tmp_path, local=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is over, to be looked at."""
    storage = tmp_path_factory.mktemp("runs")
    hooks = {"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}}
    return run(described(task_args={"test": 5}, hooks=hooks), storage, local=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(alert_delivery, "RETRY_DELAYS_S", (0, 0, 0))
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
