"""The state of a run, read from its files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hooks.position import Position
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import seconds_at
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.run_folder import RunFolder
from orchestrator.terminal.run_status import (
    SPEED_ITERATIONS,
    LiveRun,
    RunProgress,
    RunView,
    Speed,
    compute_speed,
    estimate_progress,
)
from tests.orchestrator.doctor.runs import FALLING, slower, training
from tests.orchestrator.runs.written import NOBODY, age, begun, rows_of, written_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two ranks, of which rank 1 takes 20 ms more in each forward pass, after 200 of 400
    iterations."""
    made = written_run(tmp_path)
    rows = training(
        2, 200, slower("forward_s", 1, 0.02), loss=FALLING, batch_size=8, samples=0, rss_bytes=2**20
    )
    rows_of(made, rows)
    made.append_metrics(
        {
            "attempt": 0,
            "time": "2026-01-01T00:00:00Z",
            "epoch": 0,
            "step": 100,
            "iteration": 100,
            "val/accuracy": 0.75,
        }
    )
    return made


def test_running_run_has_progress_and_speed(folder: RunFolder) -> None:
    view = LiveRun(folder).read_view()
    rows = training(2, 200, slower("forward_s", 1, 0.02))
    assert (view.status, view.reports, view.report["val/accuracy"], view.attempts) == (
        "running",
        1,
        0.75,
        1,
    )
    assert (view.progress.phase, view.progress.iteration, view.progress.share) == (
        "train",
        200,
        200 / 400,
    )
    assert view.speed.loss == pytest.approx(FALLING[-50:].mean())
    assert view.speed.step_s == pytest.approx(rows.groupby("rank").tail(50)["step_s"].median())
    assert view.progress.eta_s is not None
    assert view.notice is None
    assert view.row_age_s is not None


def test_slow_rank_is_found_by_its_own_work(folder: RunFolder) -> None:
    view = LiveRun(folder).read_view()
    assert [(rank.rank, rank.node, rank.iteration, rank.rss_bytes) for rank in view.ranks] == [
        (0, "node0", 200, 2**20),
        (1, "node0", 200, 2**20),
    ]
    assert slow_ranks(view) == [1]
    assert [finding.kind for finding in view.findings] == ["straggler"]
    assert view.findings[0].numbers["rank"] == 1


def test_iterations_without_a_loss_are_no_finding(tmp_path: Path) -> None:
    folder, loss = written_run(tmp_path), FALLING.copy()
    loss[1::2] = float("nan")  # `rows_of` leaves it out
    rows_of(folder, training(2, 200, loss=loss))
    assert LiveRun(folder).read_view().findings == ()


def test_next_look_reads_new_rows_and_reports(folder: RunFolder) -> None:
    live = LiveRun(folder)
    live.read_view()
    more = training(2, 250).query("iteration > 200")
    begun(folder)
    assert (live.read_view().attempts, live.read_view().ranks) == (2, ()), (
        "another attempt has ranks of its own"
    )
    rows_of(folder, more, attempt=1)
    folder.append_metrics(
        {
            "attempt": 1,
            "time": "2026-01-01T00:00:10Z",
            "epoch": 1,
            "step": 200,
            "iteration": 200,
            "val/accuracy": 0.9,
        }
    )
    view = live.read_view()
    assert (view.progress.iteration, view.reports, view.report["val/accuracy"]) == (250, 1, 0.9), (
        "the first report came again"
    )
    assert view.status == "running"
    folder.end("failed", error="rank 1: out of memory")
    ended = live.read_view()
    assert (ended.status, ended.error, ended.progress.eta_s, ended.progress.phase) == (
        "failed",
        "rank 1: out of memory",
        None,
        None,
    )


def slow_ranks(view: RunView) -> list[int]:
    return [rank.rank for rank in view.ranks if rank.timing and rank.timing.slowest]


def test_run_without_rows(tmp_path: Path) -> None:
    folder = written_run(tmp_path)
    view = LiveRun(folder).read_view()
    assert (view.progress.share, view.ranks, view.notice) == (0.0, (), None)


def test_run_without_a_driver_is_lost(folder: RunFolder) -> None:
    folder.update(pid=NOBODY)
    view = LiveRun(folder, age(folder, 40)).read_view()
    assert view.status == "lost"
    assert f"(process {NOBODY} on " in str(view.notice)
    assert "is gone; its last row is 40 s old" in str(view.notice)


def test_ended_run_shows_its_end(folder: RunFolder) -> None:
    compact(folder.storage, folder.read_attempts())
    folder.append_metrics(
        {
            "attempt": 0,
            "time": "2026-01-01T00:00:09Z",
            "epoch": 1,
            "step": 200,
            "iteration": 200,
            "val/accuracy": 0.8,
        }
    )
    folder.end("finished")
    view = LiveRun(folder).read_view()
    assert (view.status, view.progress.share, view.progress.eta_s, view.row_age_s) == (
        "finished",
        1.0,
        None,
        None,
    )
    assert (view.speed.loss, [rank.iteration for rank in view.ranks]) == (
        pytest.approx(FALLING[-50:].mean()),
        [200, 200],
    )
    assert slow_ranks(view) == [1]


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
    assert (
        estimate_progress(experiment, FIRST, reached, started(FIRST) - 10).eta_s == 0
    )  # the clock was set back
    assert (progress.epochs, progress.steps) == (experiment["epochs"], experiment["steps"])


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
