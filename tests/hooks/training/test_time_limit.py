from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from hooks.training import time_limit
from hooks.training.time_limit import TimeLimit
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.fields.construction import construct
from orchestrator.loop.loop import Loop, Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.hooks.phases import Ticks
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(time_limit, "monotonic", ticks)
    return ticks


class Takes(Hook):
    """Moves the clock by so much in each iteration."""

    def __init__(self, clock: Ticks, seconds: Callable[[State], float]) -> None:
        self.clock = clock
        self.seconds = seconds

    def on_batch(self, state: State) -> None:
        self.clock.now += self.seconds(state)


def test_pause_is_requested_once(clock: Ticks) -> None:
    hook, _ = construct(TimeLimit, {"limit": "2h30m"}, "hooks.time_limit")
    state = State()
    hook.on_start(state)
    for clock.now in (8999.99, 9000, 9001):
        hook.on_step(state)
    (reason,) = state.pause_reasons
    assert reason.startswith("the time limit of 2:30:00 is reached")


def run_loop(
    root: Path, clock: Ticks, limit: float, restore: str | None = None
) -> tuple[Loop, list[Report]]:
    """A run of 14 iterations, each of ten seconds, and of validations that take a second a
    batch."""
    hooks = {
        "takes": Takes(clock, lambda state: 10 if state.phase == "train" else 1),
        "time_limit": TimeLimit(limit),
    }
    loop = Loop(Points(), experiment(), hooks, RunContext(store=CheckpointStore(Storage(root))))
    if restore:
        loop.restore(restore)
    return loop, list(loop.run())


def test_run_is_saved_and_interrupted_at_its_limit(tmp_path: Path, clock: Ticks) -> None:
    loop, reports = run_loop(tmp_path, clock, 95)  # 7 iterations, 3 of validation, 2.2 iterations
    assert loop.state.iteration == 10
    assert (reports[-1].interrupted, reports[-1].is_final) == (True, True)
    assert CheckpointStore(Storage(tmp_path)).list_names() == ["step-00000010"]


def test_used_time_counts_over_a_resume_with_a_higher_limit(tmp_path: Path, clock: Ticks) -> None:
    whole, _ = run_loop(tmp_path / "whole", clock, 1000)
    first, _ = run_loop(tmp_path / "run", clock, 95)
    clock.now += 5000  # nobody works on it
    again, reports = run_loop(tmp_path / "run", clock, 95, "step-00000010")
    assert (first.state.iteration, again.state.iteration, reports[-1].interrupted) == (10, 11, True)
    # 103 seconds are used at the first pause, 113 at the second
    third, reports = run_loop(tmp_path / "run", clock, 125, "step-00000011")
    assert (third.state.iteration, reports[-1].interrupted) == (13, True)
    last, reports = run_loop(tmp_path / "run", clock, 1000, "step-00000013")
    assert (last.state.iteration, reports[-1].interrupted) == (14, False)
    assert numbers(last.state.module) == numbers(whole.state.module)


def _one_rank_is_late(rank: int, world_size: int, folder: str) -> Any:
    clock = Ticks()
    time_limit.monotonic = clock
    store = CheckpointStore(Storage(folder), is_master=rank == 0)
    hooks: dict[str, Hook] = {
        "takes": Takes(clock, lambda state: 10.0 * rank),
        "time_limit": TimeLimit(25),
    }
    loop = Loop(
        Points(), experiment(), hooks, RunContext(world=World(rank, world_size, rank), store=store)
    )
    reports = list(loop.run())
    return loop.state.iteration, reports[-1].stopped, reports[-1].interrupted, store.list_names()


def test_ranks_pause_together(tmp_path: Path) -> None:
    first, second = on_ranks(_one_rank_is_late, 2, str(tmp_path))
    assert first == second
    iteration, reasons, interrupted, names = first
    # The third iteration, or the end of the phase, as ranks ask each other now and then.
    assert 3 <= iteration <= 4
    assert [reason[:30] for reason in reasons] == ["the time limit of 0:00:25 is r"]
    assert interrupted
    assert len(names) == 1
