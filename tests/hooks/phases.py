"""Phases in miniature: fires the events around iterations as the loop does, without training
anything."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hooks import Hook, Plan, State
from orchestrator.testing import small_loop


class Ticks:
    """A clock for tests: it stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(small_loop.Screen):
    """A display that keeps its lines and the progress."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[tuple[str, int, int, str]] = []

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        self.bars.append((label, completed, total, text))


def run_phase(
    hook: Hook,
    state: State,
    phase: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    metrics: Mapping[str, float] | None = None,
    batch_sizes: Sequence[int] | None = None,
    length: int | None = None,
    fetch: Callable[[], None] = lambda: None,
    work: Callable[[], None] = lambda: None,
    close: Callable[[], Mapping[str, Any]] = dict,
    step_end: Callable[[], None] = lambda: None,
) -> None:
    """Runs one phase with a row for each iteration. In train every `state.accumulate`-th iteration
    is a step, and the epoch is over after `length` iterations; `fetch` and `work` are called where
    the loop fetches and computes, and `close` gives the columns that the loop's clock adds as a row
    is closed."""
    plan = Plan({hook.name or "hook": hook})
    train = phase == "train"
    state.phase = phase
    state.stepped = False
    trained = state.phase_iteration
    state.phase_length = length if length is not None else len(rows)
    if train:
        state.epoch_completed = False
        state.iterations_before = state.iteration - trained
    else:
        state.phase_iteration = state.iterations_before = 0
    state.row = {}
    plan.fire("on_phase_start", state)
    for index, row in enumerate(rows):
        plan.fire("on_iteration_start", state)
        fetch()
        state.batch_size = batch_sizes[index] if batch_sizes else 1
        plan.fire("on_batch", state)
        work()
        state.row.update(row)
        state.phase_iteration += 1
        if train:
            state.stepped = state.phase_iteration % state.accumulate == 0
            state.iteration += 1
            state.step += state.stepped
            state.samples += state.batch_size
            state.world_samples += state.batch_size * state.world_size
        plan.fire("on_step", state)
        place = {"phase": phase, "iteration": state.iteration if train else state.phase_iteration}
        state.row.update(
            place, epoch=state.epoch - state.epoch_completed, batch_size=state.batch_size, **close()
        )
        state.recent.append(state.row)
        state.row = {}
        step_end()
    if train and state.phase_iteration >= state.phase_length:
        state.epoch += 1
        state.epoch_completed = True
        state.phase_iteration = 0
    state.metrics = {**state.metrics, **(metrics or {})}
    plan.fire("on_phase_end", state)
    if not train:
        state.phase_iteration = trained


def loss_rows(*values: float) -> list[dict[str, float]]:
    """Rows with nothing but a loss."""
    return [{"loss": value} for value in values]
