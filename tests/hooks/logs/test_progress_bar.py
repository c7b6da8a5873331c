"""Progress bars: which moves are drawn, and that they end."""

from hooks import State
from hooks.interval import Interval
from hooks.logs.progress_bar import ProgressBar
from tests.hooks.phases import Screen, run_phase


def test_bar_moves_at_its_interval_and_ends_full() -> None:
    screen = Screen()
    run_phase(
        ProgressBar(every=Interval(4, "iterations")), State(display=screen), "train", [{}] * 10
    )
    assert screen.bars == [("train", done, 10, "epoch 1") for done in (0, 4, 8, 10)]


def test_phase_interrupted_by_validation_continues() -> None:
    screen = Screen()
    hook = ProgressBar(every=Interval(2, "iterations"))
    state = State(display=screen)
    run_phase(hook, state, "train", [{}] * 3, length=6)
    assert [done for _, done, _, _ in screen.bars] == [0, 2, 6]
    run_phase(hook, state, "train", [{}] * 3, length=6)
    assert [done for _, done, _, _ in screen.bars[3:]] == [3, 4, 6]


def test_a_failure_ends_the_bar() -> None:
    screen = Screen()
    hook = ProgressBar(every=Interval(1, "iterations"))
    state = State(display=screen, phase="val", phase_length=9)
    hook.on_phase_start(state)
    hook.on_exception(state, RuntimeError())
    assert screen.bars[-1] == ("val", 9, 9, "epoch 1")
