"""Share, remaining time and speed of a run, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hooks.position import Position
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.timestamps import seconds_at
from orchestrator.terminal.estimates import SPEED_ITERATIONS, compute_speed, estimate_progress
from orchestrator.terminal.run_view import RunProgress, Speed

EPOCHS = {"epochs": 5, "steps": None, "accumulate": 1, "batch_size": 8}
STEPS = {"epochs": None, "steps": 100, "accumulate": 4, "batch_size": 8}
FIRST = Attempt(0, world_size=2, epoch_iterations=20, started="2026-01-01T00:00:00Z")


def started(attempt: Attempt) -> float:
    return seconds_at(attempt.started)


@pytest.mark.parametrize(
    ("experiment", "reached", "remaining", "share"),
    [
        (EPOCHS, RunProgress("train", 1, 25, 25), 75, 25 / 100),
        (EPOCHS, RunProgress("test", 4, 100, 100), 0, 1.0),
        # An epoch has five steps of four iterations, and 122 of 400 are completed.
        (STEPS, RunProgress("train", 6, 30, 122), 278, 122 / 400),
        # An epoch has two steps, of 15 and 5 iterations: 100 steps are 50 epochs.
        ({**STEPS, "accumulate": 15}, RunProgress("train", 6, 13, 135), 1000 - 135, 135 / 1000),
    ],
)
def test_eta_uses_the_mean_pace_of_the_attempt(
    experiment: dict[str, Any], reached: RunProgress, remaining: int, share: float
) -> None:
    progress = estimate_progress(experiment, FIRST, reached, started(FIRST) + 10)
    assert progress.share == share
    assert progress.eta_s == pytest.approx(remaining * 10 / reached.iteration)
    assert (progress.epochs, progress.steps) == (experiment["epochs"], experiment["steps"])


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    reached = RunProgress("train", 1, 25, 25)
    assert estimate_progress(EPOCHS, FIRST, reached, started(FIRST) - 10).eta_s == 0


def test_progress_after_a_change_of_ranks() -> None:
    """Two ranks completed an epoch of 20 iterations and 10 more; four ranks have 10 per epoch, and
    completed 5."""
    position = Position(epoch=1, iteration=30, offset=10 * 8 * 2)
    second = replace(FIRST, number=1, position=position, world_size=4, epoch_iterations=10)
    begin = estimate_progress(EPOCHS, second, RunProgress("train", 1, 30, 30), started(FIRST))
    assert (begin.share, begin.eta_s) == (30 / (30 + 5 * 10 - 10 - 5), None)
    later = estimate_progress(EPOCHS, second, RunProgress("train", 1, 33, 33), started(FIRST) + 6)
    assert later.eta_s == (5 * 10 - 10 - 5 - 3) * 6 / 3


def test_unknown_values_are_none() -> None:
    unknown = replace(FIRST, epoch_iterations=None)
    progress = estimate_progress(EPOCHS, unknown, RunProgress("train", 0, 3, 3), started(FIRST) + 1)
    assert (progress.share, progress.eta_s) == (None, None)
    begin = estimate_progress(EPOCHS, FIRST, RunProgress(), started(FIRST) + 1)
    assert (begin.share, begin.eta_s) == (0.0, None)


def test_speed_is_of_the_last_iterations() -> None:
    """Iteration n takes n seconds, and half as much again on rank 1; every batch has 32 samples."""
    iterations = np.arange(1, 101)
    rows = pd.concat(
        pd.DataFrame(
            {
                "rank": rank,
                "iteration": iterations,
                "step_s": iterations * (1 + rank / 2),
                "batch_size": 32,
                "loss": 1.0 / iterations + rank,
            }
        )
        for rank in (0, 1)
    )
    last = iterations[-SPEED_ITERATIONS:]
    assert compute_speed(rows) == Speed(
        loss=pytest.approx(np.mean(1.0 / last) + 0.5),
        step_s=pytest.approx(np.median(np.concatenate([last, 1.5 * last]))),
        samples_per_s=pytest.approx(2 * 32 * SPEED_ITERATIONS / (1.5 * last.sum())),
    )


def test_speed_is_right_before_all_ranks_have_as_many_rows() -> None:
    """Each rank has 10 samples in 0.1 s; the rows of rank 1 are written later."""
    rows = pd.concat(
        pd.DataFrame({"rank": rank, "step_s": [0.1] * count, "batch_size": 10})
        for rank, count in ((0, 50), (1, 5))
    )
    assert compute_speed(rows).samples_per_s == pytest.approx(200)


@pytest.mark.filterwarnings("error")
def test_speed_without_finite_values_is_unknown() -> None:
    rows = {
        "rank": [0, 0],
        "iteration": [1, 2],
        "loss": [np.inf, -np.inf],
        "step_s": np.nan,
        "batch_size": 8,
    }
    assert compute_speed(pd.DataFrame()) == compute_speed(pd.DataFrame(rows)) == Speed()
