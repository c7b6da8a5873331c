"""Lines for people, against hand calculations on a clock that tests move."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hooks import State
from hooks.interval import Interval
from hooks.logs import console
from hooks.logs.console import Console
from hooks.logs.shared.statistic import Statistic, Window
from tests.hooks.phases import Screen, Ticks, loss_rows, run_phase


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(console, "perf_counter", ticks)
    return ticks


def _passes(ticks: Ticks, *seconds: float) -> Callable[[], None]:
    """Lets time pass: each of `seconds` in turn, then the last again and again."""
    left = list(seconds)

    def work() -> None:
        ticks.now += left.pop(0) if len(left) > 1 else left[0]

    return work


def test_a_line_every_interval_and_at_the_end_of_a_long_phase() -> None:
    screen = Screen()
    run_phase(
        Console(every=Interval(4, "iterations"), min_seconds=0),
        State(display=screen),
        "train",
        loss_rows(*[1.0] * 10),
    )
    assert [line.split("  ")[2] for line in screen.lines[:-1]] == ["4/10", "8/10", "10/10"]
    screen = Screen()
    run_phase(
        Console(every=Interval(4, "iterations")), State(display=screen), "train", loss_rows(1, 1, 1)
    )
    assert len(screen.lines) == 1, "a short phase has the line of its end only"


def test_fast_iterations_leave_out_lines_but_no_row(ticks: Ticks) -> None:
    """Iterations of 40 ms, and a line after 100 ms or more: the means are over all rows since the
    line before, and the end of the phase has its line."""
    screen = Screen()
    hook = Console(every=Interval(1, "iterations"), window="line", min_seconds=0.1)
    state = State(display=screen)
    run_phase(hook, state, "train", loss_rows(*range(1, 9)), work=_passes(ticks, 0.04))
    assert [line.split("  ")[2:4] for line in screen.lines[:-1]] == [
        ["1/8", "loss 1"],
        ["4/8", "loss 3"],
        ["7/8", "loss 6"],
        ["8/8", "loss 8"],
    ]


def test_lines_left_out_read_each_row_before_it_is_dropped(ticks: Ticks) -> None:
    """The clock stands still, and more iterations pass than `State.recent` holds."""
    screen = Screen()
    hook = Console(every=Interval(300, "iterations"), window="epoch")
    losses = [float(loss) for loss in range(1, 2501)]
    run_phase(hook, State(display=screen), "train", loss_rows(*losses))
    assert [line.split("  ")[2:4] for line in screen.lines[:-1]] == [
        ["300/2500", "loss 150.5"],
        ["1200/2500", "loss 600.5"],
        ["2100/2500", "loss 1050"],
        ["2500/2500", "loss 1250"],
    ]


@pytest.mark.parametrize(("window", "mean"), [("line", 3.0), (4, 3.5), ("epoch", 4.5)])
def test_short_phases_print_lines_that_cover_all_iterations(window: Window, mean: float) -> None:
    """Epochs of three iterations and a line every fifth: the losses since the last line, the last
    four, the epoch's."""
    screen = Screen()
    hook = Console(every=Interval(5, "iterations"), window=window)
    state = State(display=screen)
    for losses in ((1, 1, 4), (4, 5, 7), (7, 7, 7)):
        run_phase(hook, state, "train", loss_rows(*losses))
    (line,) = [line for line in screen.lines if "done" not in line]
    assert line.split("  ")[1:4] == ["epoch 2", "2/3", f"loss {mean:g}"]


def test_line_has_position_rates_loss_time_and_memory(ticks: Ticks) -> None:
    """Loss over the last two of 1, 2, 6; 30 ms an iteration of which 10 ms are waited for data."""
    screen = Screen()
    rows = [
        {"loss": loss, "lr": 1e-6, "grad_norm": 2.5, "rss_bytes": 3 * 2**20}
        for loss in (1.0, 2.0, 6.0)
    ]
    times = {"step_s": 0.03, "data_wait_s": 0.01}
    run_phase(
        Console(every=Interval(3, "iterations"), window=2),
        State(display=screen, epoch=4),
        "train",
        rows,
        length=5,
        close=lambda: times,
    )
    assert (
        screen.lines[0]
        == "train  epoch 5  3/5  lr 1e-06  loss 4  grad_norm 2.5  30.0 ms (data 10.0 ms)  memory 3 MiB"
    )


def test_the_end_of_a_phase_has_its_metrics(ticks: Ticks) -> None:
    screen = Screen()
    hook = Console(every=Interval(10, "iterations"))
    state = State(display=screen)
    run_phase(
        hook, state, "train", loss_rows(1.0), metrics={"train/loss": 1.0}, work=_passes(ticks, 2.0)
    )
    run_phase(
        hook,
        state,
        "val",
        loss_rows(1.0),
        metrics={"val/loss": 0.5, "val/ema/accuracy": 0.98765},
        work=_passes(ticks, 1.0),
    )
    assert screen.lines == [
        "train done  epoch 1  loss 1  in 2.0 s",
        "val done  epoch 1  loss 0.5  ema/accuracy 0.9877  in 1.0 s",
    ]


def test_statistic_that_columns_names_too_is_printed_once() -> None:
    screen = Screen()
    slowest = Statistic("step_s", "max", "epoch")
    hook = Console(
        every=Interval(1, "iterations"), columns=("slowest",), statistics={"slowest": slowest}
    )
    state = State(display=screen)
    run_phase(hook, state, "train", [{"step_s": 0.5}])
    assert screen.lines[0].count("slowest 0.5") == 1


def _eta(line: str) -> str | None:
    found = re.search(r"eta ([0-9:]+)", line)
    return found[1] if found else None


def test_remaining_time_is_at_the_mean_speed_since_the_first_line_with_validations(
    ticks: Ticks,
) -> None:
    """Epochs of 10 x 1 s and a validation of 20 s. From iteration 5 to 15 pass 30 s, and 15
    iterations remain."""
    screen = Screen()
    hook = Console(every=Interval(5, "iterations"))
    state = State(display=screen, max_epochs=3)
    run_phase(
        hook, state, "train", loss_rows(*[1.0] * 10), work=_passes(ticks, 60, 60, 60, 60, 60, 1)
    )
    run_phase(hook, state, "val", loss_rows(*[1.0] * 2), work=_passes(ticks, 10))
    run_phase(hook, state, "train", loss_rows(*[1.0] * 10), work=_passes(ticks, 1))
    assert [_eta(line) for line in screen.lines if line.startswith("train  ")] == [
        None,
        "0:00:20",
        "0:00:45",
        "0:00:23",
    ]


def test_remaining_time_counts_the_micro_batches_of_a_step(ticks: Ticks) -> None:
    """20 iterations of 2 s made 10 of 50 steps. Of 21 iterations, an epoch's last step has only
    one: the next epochs have 11 steps each, so that 50 steps are four epochs and six steps of two
        iterations."""
    screen = Screen()
    hook = Console(every=Interval(10, "iterations"))
    state = State(display=screen, max_steps=50, accumulate=2)
    run_phase(hook, state, "train", loss_rows(*[1.0] * 20), length=21, work=_passes(ticks, 2))
    assert _eta(screen.lines[1]) == "0:02:32"


def test_no_time_remains_once_training_has_ended_early(ticks: Ticks) -> None:
    """20 of 100 steps, of which the last four follow the line of step 16."""
    screen = Screen()
    hook = Console(every=Interval(8, "iterations"))
    state = State(display=screen, max_steps=100)

    def work() -> None:
        ticks.now += 1
        state.ended_early = ticks.now == 20

    run_phase(hook, state, "train", loss_rows(*[1.0] * 20), length=50, work=work)
    lines = [line for line in screen.lines if line.startswith("train  ")]
    assert [_eta(line) for line in lines] == [None, "0:01:24", "0:00:00"]
    assert "step 20/100" in lines[-1]


@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        ((0.5, 0.25), "lr 0.5, 0.25"),
        ((1e-6, 1e-6), "lr 1e-06"),
        ((1e-7, 1e-6, 1e-5, 1e-4, 1e-3), "lr 1e-07 to 0.001"),
    ],
)
def test_learning_rates_that_differ_are_shown_and_never_as_zero(
    rates: tuple[float, ...], shown: str
) -> None:
    """VISSL's TensorBoard failed for several rates, and five decimals made 1e-6 zero; MMEngine
    shows only the first."""
    screen = Screen()
    groups = [{"params": nn.Linear(1, 1).parameters(), "lr": rate} for rate in rates]
    run_phase(
        Console(every=Interval(1, "iterations")),
        State(display=screen, optimizer=torch.optim.SGD(groups)),
        "train",
        loss_rows(1.0),
    )
    assert screen.lines[0] == f"train  epoch 1  1/1  {shown}  loss 1"
