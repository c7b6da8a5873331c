"""Lines against what the other systems' own format strings give for the same numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hooks import State
from hooks.logs.console import Console
from hooks.parts.logs.console_lines import FORMATS, Moment
from tests.hooks.phases import Screen, run_phase

STATE: dict[str, Any] = {"phase": "train", "epoch": 8, "max_epochs": 100, "phase_length": 270, "iteration": 2170, "step": 2170, "phase_iteration": 10}


def _moment(state: dict[str, Any] | None = None, **fields: Any) -> Moment:
    given = {
        "iteration": 10,
        "rates": {"lr": 1e-6},
        "values": {"loss": 0.51234567, "grad_norm": 2.5},
        "times": {"step_s": 0.2871, "data_wait_s": 0.0124},
        "memory": 497 * 2**20,
        "eta": 3661.0,
    }
    return Moment(State(**{**STATE, **(state or {})}), **{**given, **fields})


def test_hookyard() -> None:
    assert FORMATS["hookyard"].within(_moment()) == (
        "train  epoch 8  10/270  lr 1e-06  loss 0.5123  grad_norm 2.5  287.1 ms (data 12.4 ms)  eta 1:01:01  memory 497 MiB"
    )


def test_hookyard_tells_the_steps_of_a_run_in_steps() -> None:
    line = FORMATS["hookyard"].within(_moment({"max_epochs": None, "max_steps": 9000}))
    assert line.startswith("train  epoch 8  10/270  step 2170/9000  lr 1e-06  ")


def test_mmengine_by_epoch() -> None:
    """Its docs: `Epoch(train)   [9][010/270]` beside `Epoch(train) [100][100/270]`; the iteration has no zeros since 0.2."""
    assert FORMATS["mmengine"].within(_moment()) == (
        "Epoch(train)   [9][ 10/270]  lr: 1.0000e-06  eta: 1:01:01  time: 0.2871  data_time: 0.0124  memory: 497  "
        "loss: 0.5123  grad_norm: 2.5000"
    )


def test_mmengine_by_iteration() -> None:
    """10 of 90,000 iterations, as `Iter(train) [   10/90000]  `; two micro-batches are a step."""
    state = {"max_epochs": None, "max_steps": 45000, "accumulate": 2, "iteration": 10, "step": 5}
    line = FORMATS["mmengine"].within(_moment(state, eta=None, times={}, memory=None))
    assert line == "Iter(train) [   10/90000]  lr: 1.0000e-06  loss: 0.5123  grad_norm: 2.5000"


def test_mmengine_s_validation() -> None:
    """`Epoch(val) [9][7/7]    accuracy: 0.9798  time: 0.1000`, which has no learning rate between its four spaces."""
    state = {"phase": "val", "phase_length": 7, "phase_iteration": 7, "max_epochs": 9}
    ended = _moment(state, iteration=7, rates={}, values={}, times={}, eta=None, metrics={"accuracy": 0.97981}, seconds=0.7)
    assert FORMATS["mmengine"].end(ended) == ["Epoch(val) [9][7/7]    accuracy: 0.9798  time: 0.1000"]
    assert FORMATS["mmengine"].within(ended) == "Epoch(val) [9][7/7]    memory: 497"
    assert FORMATS["mmengine"].end(_moment(metrics={"loss": 1.0})) == []


def test_mmengine_s_learning_rates() -> None:
    line = FORMATS["mmengine"].within(_moment(rates={"lr": 0.5, "lr_1": 0.5, "lr_2": 0.25}))
    assert "]  lr: 5.0000e-01 lr_2: 2.5000e-01  eta" in line


def test_vissl() -> None:
    """`[ep: 8] ` is the one entry without a semicolon; a rate of 1e-6 is 0.0 in its own five decimals."""
    assert FORMATS["vissl"].within(_moment(values={"loss": 0.51234567})) == (
        "Rank: 0; [ep: 8] iter: 2170; lr: 1e-06; loss: 0.51235; btime(ms): 287; eta: 1:01:01; peak_mem(M): 497;"
    )


def test_vissl_s_first_line_and_lists_of_rates() -> None:
    line = FORMATS["vissl"].within(_moment(first=True, rates={"lr": 0.3, "lr_1": 0.03}, memory=None))
    assert "lr: [0.3, 0.03]; " in line
    assert line.endswith("peak_mem(M): -1; max_iterations: 27000;"), "100 epochs of 270"


def test_vissl_s_meters() -> None:
    ended = _moment({"phase": "val"}, metrics={"accuracy": 0.9798, "loss": 0.5})
    assert FORMATS["vissl"].end(ended) == ["Rank: 0, name: val_accuracy, value: 0.9798", "Rank: 0, name: val_loss, value: 0.5"]


def test_classy() -> None:
    """Four decimals would make the learning rate 0.0000."""
    assert FORMATS["classy"].within(_moment()) == (
        "Approximate meters: [0] train phase 8 (3.70% done), loss: 0.5123, meters: [grad_norm=2.500000], "
        "lr: 1e-06, processed batches: 10"
    )
    ended = _moment({"phase": "val"}, iteration=270, rates={}, metrics={"loss": 0.5, "accuracy": 0.97981})
    assert FORMATS["classy"].end(ended) == [
        "Synced meters: [0] val phase 8 (100.00% done), loss: 0.5000, meters: [accuracy=0.979810], processed batches: 270"
    ]


def test_imix() -> None:
    """Its two format strings put together, with their tabs."""
    assert FORMATS["imix"].within(_moment(values={"loss": 0.51234567})) == (
        "epoch:8 \t 10/270 \t current_iter:2170 \t max_iter:27000 \t max_epoch:100 \t loss: 0.512 \t lr:1.000000e-06 \t"
        "load_data_time:0.0124 \t iter_time:0.2871 \t max used memory:497M \t eta:1:01:01"
    )


@pytest.mark.parametrize(
    ("format", "lines"),
    [
        # after 5, 10 and 12 iterations of training, at its end; in validation after 5, 10 and 12, at its end
        ("hookyard", 3 + 1 + 3 + 1),
        ("mmengine", 3 + 0 + 3 + 1),
        ("vissl", 3 + 1 + 0 + 1),
        ("classy", 3 + 1 + 0 + 1),
        ("imix", 3 + 1 + 0 + 1),
    ],
)
def test_every_format_lasts_a_run(format: Any, lines: int) -> None:
    screen, hook = Screen(), Console(interval=5, format=format)
    state = State(display=screen, max_epochs=1)
    run_phase(hook, state, "train", [{"loss": 1.0}] * 12, metrics={"train/loss": 1.0})
    run_phase(hook, state, "val", [{"loss": 1.0}] * 12, metrics={"val/loss": 1.0})
    assert len(screen.lines) == lines
    assert re.search(r"12/12|iter: 12|batches: 12", "\n".join(screen.lines))


@pytest.mark.parametrize(("format", "lines"), [("hookyard", 2), ("mmengine", 2), ("vissl", 3), ("classy", 2), ("imix", 3)])
def test_short_phases(format: Any, lines: int) -> None:
    """MMEngine has a line for an epoch that is shorter than the interval, and none for the end of training."""
    screen, hook = Screen(), Console(interval=5, format=format)
    state = State(display=screen, max_epochs=1)
    run_phase(hook, state, "train", [{"loss": 1.0}] * 3, metrics={"train/loss": 1.0})
    run_phase(hook, state, "val", [{"loss": 1.0}] * 3, metrics={"val/loss": 1.0})
    assert len(screen.lines) == lines
