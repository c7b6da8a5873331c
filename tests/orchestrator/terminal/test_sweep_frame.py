from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.terminal.run_status import RunView
from orchestrator.terminal.sweep_frame import short_names, sweep_frame
from orchestrator.terminal.sweep_status import SweepView, TrialView
from tests.orchestrator.terminal.test_run_frame import VIEW as RUN
from tests.orchestrator.terminal.test_run_frame import drawn


def trial(
    number: int, status: str = "finished", best: float | None = None, run: RunView | None = None, **fields: Any
) -> TrialView:
    known: dict[str, Any] = {
        "values": {"optimizer.lr": 0.1234567, "hooks.ema": None},
        "stopped": (),
        "error": None,
        **fields,
    }
    return TrialView(
        f"trial-{number:04d}",
        status,
        best=best,
        last=best,
        started="2026-01-01T00:00:00Z",
        ended=None,
        run=run,
        **known,
    )


TRIALS = (
    trial(3, "running", 0.5, RUN),
    trial(0, best=0.9),
    trial(1, "stopped", 0.7, stopped=("the scheduler ended the trial",)),
    trial(2, "failed", error="rank 1: out of memory\nand more"),
)
VIEW = SweepView(
    name="sweep",
    path="runs/sweep",
    status="running",
    error=None,
    metric="val/accuracy",
    mode="max",
    total=6,
    counts={"running": 1, "finished": 1, "stopped": 1, "failed": 1},
    best="trial-0000",
    share=3.5 / 6,
    eta_s=240,
    trials=TRIALS,
)


def test_a_frame_says_how_many_are_over_and_what_is_best() -> None:
    lines = drawn(sweep_frame(VIEW), 140)
    assert lines[0] == "runs/sweep  running"
    assert lines[1].startswith("3 of 6 trials over")
    assert lines[1].endswith("58%  eta 4 min")
    assert lines[2] == "1 running, 1 finished, 1 stopped, 1 failed, 2 to come; best val/accuracy 0.9 in trial-0000"
    assert "no trial has reported val/accuracy yet" in drawn(sweep_frame(replace(VIEW, best=None, trials=())), 140)[2]


def test_each_trial_has_a_row() -> None:
    rows = {line.split()[0]: line for line in drawn(sweep_frame(VIEW), 160) if line.startswith("trial-")}
    assert list(rows) == ["trial-0003", "trial-0000", "trial-0001", "trial-0002"]
    assert rows["trial-0003"].split()[:7] == ["trial-0003", "running", "50%", "2", "min", "0.5", "0.5"]
    assert rows["trial-0003"].endswith("lr=0.1235 ema=null  rank 1 +20 ms forward_s")
    assert rows["trial-0001"].endswith("the scheduler ended the trial")
    assert rows["trial-0002"].endswith("rank 1: out of memory"), "the first line of the error"


def test_a_frame_has_no_more_trials_than_lines() -> None:
    many = replace(VIEW, trials=(*TRIALS[:3], *(trial(number, best=0.1) for number in range(10, 30)), TRIALS[3]))
    lines = drawn(sweep_frame(many, 20), 140)
    assert len(lines) <= 20
    assert sum(line.startswith("trial-") for line in lines) == 12
    assert lines[-1] == "and 12 more, 1 of them failed"
    assert sum(line.startswith("trial-") for line in drawn(sweep_frame(many), 140)) == 24


def test_where_room_is_short_sentences_give_way_and_a_trial_stays_a_line() -> None:
    error = "rank 1: " + "a long story " * 20
    lines = drawn(sweep_frame(replace(VIEW, trials=(*TRIALS[:3], trial(2, "failed", error=error))), 24), 80)
    rows = lines[next(number for number, line in enumerate(lines) if line.startswith("──")) + 1 :]
    assert len(rows) == len(TRIALS)
    assert rows[0].split()[:7] == ["trial-0003", "running", "50%", "2", "min", "0.5", "0.5"]
    assert all(line.split()[:2] == [one.name, one.status] for line, one in zip(rows, TRIALS, strict=True))


def test_what_ended_the_sweep_is_said() -> None:
    assert drawn(sweep_frame(replace(VIEW, status="lost", notice="the sweep is dead")), 140)[-1] == "the sweep is dead"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["optimizer.lr", "hooks.ema.decay"], {"optimizer.lr": "lr", "hooks.ema.decay": "decay"}),
        (["hooks.ema.decay", "hooks.slow.decay"], {"hooks.ema.decay": "ema.decay", "hooks.slow.decay": "slow.decay"}),
        (["epochs", "hooks.x.epochs"], {"epochs": "epochs", "hooks.x.epochs": "x.epochs"}),
    ],
)
def test_names_are_as_short_as_they_can_be(paths: list[str], names: dict[str, str]) -> None:
    assert short_names(paths) == names


@pytest.mark.parametrize("width", [80, 140])
def test_a_frame_fits_its_width(width: int) -> None:
    assert max(map(len, drawn(sweep_frame(VIEW, 24), width))) <= width
