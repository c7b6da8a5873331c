"""Nothing on the step path waits for the GPU, but for what says so: torch raises where something
does."""

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from experiments.char_documents import Documents
from experiments.char_lm import CharLM
from hooks import HOOKS, Hook, Priority, State
from hooks.hook import WITHIN_ITERATION
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS
from orchestrator.storage import Storage
from tests.gpu.hooks import CASES, UNTRIED
from tests.gpu.tasks import loop_on
from tests.tasks import Points

pytestmark = pytest.mark.gpu

FIRST = 3
"""The iterations before have allocations and caches of their own to make."""


class Watched(Hook):
    """From its third iteration on until the phase ends, a wait for the device is an error."""

    priority = Priority.HIGHEST

    def __init__(self, device: torch.device, first: int) -> None:
        self.first = first
        self.set: Callable[[str], Any] = (
            torch.cuda.set_sync_debug_mode if device.type == "cuda" else lambda mode: None
        )
        self.watched = 0

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.phase_iteration >= self.first:
            self.set("error")
            self.watched += 1

    @contextmanager
    def off(self) -> Any:
        self.set("default")
        yield
        self.set("error")


class Last(Hook):
    """Ends the watch where the phase does, which reads its means."""

    priority = Priority.LOWEST

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    def on_step(self, state: State) -> None:
        if state.phase_iteration == state.phase_length:
            self.watched.set("default")


def train_watched(
    device: torch.device,
    hooks: dict[str, Hook],
    folder: Path,
    task: Any = None,
    watch_from: int = FIRST,
    **settings: Any,
) -> int:
    """Train, and fail if an event waits that does not declare it; return the number of watched
    iterations."""
    watched = Watched(device, watch_from)
    recorder = Recorder(
        Storage(folder), "stats/attempt=0/rank=0", {"rank": 0}, flush_rows=10**6, flush_s=3600
    )
    loop = loop_on(
        device,
        task or Points(),
        {"watched": watched, **hooks, "last": Last(watched)},
        recorder=recorder,
        artifacts=folder,
        epochs=1,
        batch_size=4,
        **settings,
    )
    for call in (call for event in WITHIN_ITERATION for call in loop.training.plan.calls[event]):
        if (
            call.interval is not None
            or call.event in type(loop.training.plan.hooks[call.name]).waits_for_device
        ):
            call.run = _unwatched(watched, call.run)
    try:
        list(loop.run())
    finally:
        watched.set("default")
    return watched.watched


def _unwatched(watched: Watched, run: Callable[..., None]) -> Callable[..., None]:
    def allowed(*arguments: Any) -> None:
        with watched.off():
            run(*arguments)

    return allowed


def test_the_default_hooks_never_wait(device: torch.device, tmp_path: Path) -> None:
    hooks = {
        name: construct(
            HOOKS[name], {"every": 0, "save_last": False} if name == "checkpoint" else {}, name
        )[0]
        for name in DEFAULT_HOOKS
    }
    assert train_watched(device, hooks, tmp_path) == 10


@pytest.mark.parametrize("name", sorted(HOOKS.keys() - UNTRIED.keys()))
def test_a_hook_waits_only_where_it_says_so(
    device: torch.device, name: str, tmp_path: Path
) -> None:
    case = CASES.get(name, {})
    hook = construct(HOOKS[name], case.get("fields", {}), name)[0]
    assert train_watched(device, {name: hook}, tmp_path, case.get("task")) > 0


class Uneven(CharLM):
    """Forty documents of 3 to 15 characters."""

    def data(self) -> dict[str, Dataset[Any]]:
        return {
            "train": Documents(
                ["abcdefghijklmno"[: 3 + size % 13] for size in range(40)], self.longest
            )
        }


def test_samples_of_uneven_length_are_counted_without_a_wait(
    device: torch.device, tmp_path: Path
) -> None:
    assert train_watched(device, {}, tmp_path, Uneven(longest=16, width=8, depth=1, heads=2)) == 7


def test_a_wait_is_seen(cuda: torch.device, tmp_path: Path) -> None:
    class Reads(Hook):
        def on_loss(self, state: State) -> None:
            assert state.loss is not None
            state.loss.item()

    with pytest.raises(Exception, match="synchroniz"):
        train_watched(cuda, {"reads": Reads()}, tmp_path)
