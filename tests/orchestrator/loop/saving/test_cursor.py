"""The progress in an epoch, after a restore."""

from hooks.position import Position
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.saving.cursor import EpochProgress, RunCursor

SAMPLES = 160
SIZE = 16


def count_iterations_after(offset: int) -> int:
    return -(-(SAMPLES - offset) // SIZE)


def test_second_restore_keeps_nothing_of_the_first() -> None:
    state = LoopState()
    cursor = RunCursor(state, EpochProgress(state, count_iterations_after, SIZE))
    # 11 iterations of 8 samples: 88 = 5 * 16 + 8, and 72 samples remain.
    cursor.restore(Position(phase_iteration=11, offset=88, iteration=11))
    assert (state.phase_iteration, cursor.epoch.consumed(), cursor.epoch.length) == (5, 88, 10)

    cursor.restore(Position(phase_iteration=3, offset=48, iteration=3))
    assert (state.phase_iteration, cursor.epoch.consumed(), cursor.epoch.length) == (3, 48, 10)

    cursor.restore(Position(phase_iteration=1, offset=12, iteration=1))
    # 12 samples are less than an iteration, and 148 remain.
    assert (state.phase_iteration, cursor.epoch.consumed(), cursor.epoch.length) == (0, 12, 10)

    cursor.restore(Position())
    assert not cursor.epoch.has_begun
    assert (cursor.epoch.consumed(), cursor.epoch.length) == (0, 10)


def test_length_after_a_restore_is_that_of_the_new_position() -> None:
    state = LoopState()
    cursor = RunCursor(state, EpochProgress(state, lambda offset: (SAMPLES - offset) // 20, SIZE))
    # 40 = 2 * 16 + 8, and of the other 120 samples the data makes 6 iterations.
    cursor.restore(Position(phase_iteration=4, offset=40, iteration=4))
    assert cursor.epoch.length == 2 + 6
    cursor.restore(Position(phase_iteration=2, offset=32, iteration=2))
    assert cursor.epoch.length == 8
    cursor.restore(Position(phase_iteration=10, offset=96, iteration=10))
    assert cursor.epoch.length == 6 + 3
    cursor.restore(Position())
    assert cursor.epoch.length == 8


def test_epoch_ends_after_its_max_iterations() -> None:
    state = LoopState()
    cursor = RunCursor(state, EpochProgress(state, count_iterations_after, SIZE, 4))
    assert cursor.epoch.length == 4
    # 24 samples are an iteration and 8 samples, so 3 iterations remain.
    cursor.restore(Position(phase_iteration=3, offset=24, iteration=3))
    assert (state.phase_iteration, cursor.epoch.length) == (1, 4)
    cursor.epoch.complete()
    assert cursor.epoch.length == 4
