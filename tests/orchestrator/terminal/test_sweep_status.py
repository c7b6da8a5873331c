import gc
import math
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import pytest

from hooks.position import Position
from orchestrator.disk.attempts import LeadingAttempt, write_attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.sweeps.results.result import open_sweep
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.terminal.sweep_status import LiveSweep
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.runs.written import NOBODY, change, new_run, rows_of, written_run

NOW = int(time())


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def written_sweep(root: Path, mode: str = "max", trials: int = 8, **metadata: Any) -> RunFolder:
    settings = {"objectives": [["val/accuracy", mode]], "trials": trials}
    return new_run(root, "sweep", "hooks: {}\n", sweep=settings, **metadata)


def trial(sweep: RunFolder, number: int, *accuracies: float, **metadata: Any) -> RunFolder:
    """A trial that has reported, with 50 of its 400 iterations done for each report."""
    values: Mapping[str, Any] = {"optimizer.lr": number / 10, "hooks.ema": {"decay": 0.5}}
    folder = written_run(sweep.storage / "trials", f"trial-{number:04d}", {"values": values})
    rows_of(folder, training(1, 50 * len(accuracies), samples=0))
    for epoch, value in enumerate(accuracies):
        line = {
            "attempt": 0,
            "time": ago(5),
            "epoch": epoch,
            "step": 50 * epoch + 50,
            "iteration": 50 * epoch + 50,
        }
        folder.append_report({**line, "val/accuracy": value})
    if metadata:
        folder.run_file.end(**metadata)
    return folder


def test_running_trials_come_first_and_failed_ones_last(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path)
    trial(sweep, 0, 0.5, 0.7, status="finished")
    trial(sweep, 1, 0.2, status="failed", error="rank 0: broken")
    trial(sweep, 2, 0.9, 0.8, status="stopped", stopped=["the scheduler ended the trial"])
    trial(sweep, 3, 0.4)
    (tmp_path / "sweep/trials/trial-0004").mkdir()
    view = LiveSweep(sweep).read_view()
    assert [(one.name[-1], one.status, one.best, one.last) for one in view.trials] == [
        ("3", "running", 0.4, 0.4),
        ("2", "stopped", 0.9, 0.8),
        ("0", "finished", 0.7, 0.7),
        ("1", "failed", 0.2, 0.2),
    ]
    assert (view.status, view.total, view.best, view.failed) == ("running", 8, "trial-0002", 1)
    assert view.counts == {"running": 1, "stopped": 1, "finished": 1, "failed": 1}
    assert view.trials[0].run is not None
    assert view.trials[0].run.progress.share == 50 / 400
    assert view.trials[3].error == "rank 0: broken"


@pytest.mark.parametrize(("mode", "best"), [("max", "trial-0001"), ("min", "trial-0000")])
def test_best_trial_may_still_be_running(tmp_path: Path, mode: str, best: str) -> None:
    sweep = written_sweep(tmp_path, mode)
    trial(sweep, 0, 0.3, 0.6, status="finished")
    trial(sweep, 1, 0.8, 0.4)
    trial(sweep, 2, float("nan"))
    assert LiveSweep(sweep).read_view().best == best


def test_eta_of_a_sweep_uses_its_pace(tmp_path: Path) -> None:
    """Three and an eighth of eight trials in 100 seconds."""
    sweep = written_sweep(tmp_path, started=ago(100))
    for number in range(3):
        trial(sweep, number, 0.5, status="finished")
    trial(sweep, 3, 0.5)
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert view.share == 3.125 / 8
    assert view.eta_s == pytest.approx(100 * 4.875 / 3.125)
    sweep.run_file.end("interrupted")
    assert LiveSweep(sweep).read_view().eta_s is None


def test_eta_uses_the_pace_of_the_present_attempt(tmp_path: Path) -> None:
    """Two trials were over before; one of the three left took 50 seconds, and one has yet to
    continue."""
    sweep = written_sweep(tmp_path, trials=5, started=ago(9000), resumed=[ago(50)])
    for number in range(2):
        change(trial(sweep, number, 0.5, status="finished"), ended=ago(8000))
    trial(sweep, 2, 0.5, status="finished")
    change(trial(sweep, 3, 0.5, status="interrupted"), ended=ago(8000))
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert (view.ended, view.share, view.eta_s) == (3, 3 / 5, pytest.approx(2 * 50))


def test_eta_counts_a_resumed_trial_from_its_checkpoint(tmp_path: Path) -> None:
    """Since the resume 50 s ago, 100 of its 400 iterations are done; the other trial has yet to
    begin."""
    sweep = written_sweep(tmp_path, trials=2, started=ago(9000), resumed=[ago(50)])
    resumed = trial(sweep, 0, 0.5, 0.6)
    change(resumed, started=ago(8000))
    attempt = resumed.begin_attempt("epoch-0001", Position(epoch=1, step=100, iteration=100))
    write_attempt(resumed.storage, replace(attempt, epoch_iterations=100))
    rows_of(resumed, training(1, 200, samples=0).query("iteration > 100"), attempt=1)
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert (view.share, view.eta_s) == (0.5 / 2, pytest.approx(50 * 1.5 / 0.25))
    resumed.append_report(
        {"attempt": 1, "epoch": 1, "step": 400, "iteration": 400, "val/accuracy": 0.6}
    )
    resumed.run_file.end("finished")
    write_index(sweep)
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert (view.share, view.eta_s) == (1 / 2, pytest.approx(50 * 1 / 0.75)), (
        "300 of 400 iterations in 50 s"
    )


def test_ended_trials_are_read_once_per_attempt(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path)
    done = trial(sweep, 0, 0.5, status="interrupted")
    failed = trial(sweep, 1, 0.5, status="failed", error="lost")
    live = LiveSweep(sweep)
    assert live.read_view().counts == {"interrupted": 1, "failed": 1}
    for folder in (done, failed):
        change(folder, status="running")
    assert live.read_view().counts == {"interrupted": 1, "running": 1}, (
        "Tune starts a failed trial anew"
    )
    change(sweep, resumed=[ago(0)])
    assert live.read_view().counts == {"running": 2}


def test_sweep_without_a_driver_is_lost(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path)
    change(trial(sweep, 0, 0.5), pid=NOBODY)
    change(sweep, pid=NOBODY)
    view = LiveSweep(sweep).read_view()
    assert (view.status, view.trials[0].status, view.failed) == ("lost", "lost", 1)
    assert f"the sweep is dead: its driver (process {NOBODY} on " in str(view.notice)


def test_damaged_trial_is_shown_among_the_others(tmp_path: Path) -> None:
    """Two of four trials are over, of which one was trained in these 50 seconds."""
    sweep = written_sweep(tmp_path, trials=4, started=ago(50))
    trial(sweep, 0, 0.5, status="finished")
    damaged = trial(sweep, 1, 0.9, status="finished")
    damaged.storage.write("run.json", b"{")
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert [(one.name, one.status, one.best) for one in view.trials] == [
        ("trial-0000", "finished", 0.5),
        ("trial-0001", "damaged", None),
    ]
    assert f"{damaged}/run.json is damaged" in str(view.trials[1].error)
    assert (view.best, view.ended, view.failed) == ("trial-0000", 2, 1)
    assert view.eta_s == pytest.approx(50 * 2 / 1)


def test_trial_of_a_later_version_counts_as_failed(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path, trials=2)
    trial(sweep, 0, 0.5, status="finished")
    newer = trial(sweep, 1, 0.9, status="finished")
    newer.storage.write("run.json", '{"format": 99}')
    view = LiveSweep(sweep, lambda: NOW).read_view()
    assert [(one.name, one.status) for one in view.trials] == [
        ("trial-0000", "finished"),
        ("trial-0001", "newer"),
    ]
    assert view.failed == open_sweep(str(sweep)).count_failed_trials() == 1


def test_damaged_leader_takes_no_follower_with_it(tmp_path: Path) -> None:
    constraints = {"samples_per_s": "<= 1", "val/accuracy": ">= 0.6"}
    settings = {"objectives": [["val/accuracy", "max"]], "trials": 2, "constraints": constraints}
    sweep = new_run(tmp_path, "sweep", "hooks: {}\n", sweep=settings)
    trial(sweep, 0, 0.5, status="finished").storage.write("run.json", b"{")
    follower = trial(sweep, 1, 0.5, status="finished")
    attempt = follower.read_attempts()[0]
    write_attempt(follower.storage, replace(attempt, leader=LeadingAttempt("trial-0000", 0)))
    view = LiveSweep(sweep).read_view()
    assert [one.status for one in view.trials] == ["finished", "damaged"]
    assert "val/accuracy is 0.5, not >= 0.6" in str(view.trials[0].infeasible)


def test_ended_trials_keep_no_reports_in_memory(tmp_path: Path) -> None:
    held = []
    for reports in (5, 100):
        sweep = written_sweep(tmp_path / str(reports))
        for number in range(2):
            trial(sweep, number, *[0.5] * reports, status="finished")
        LiveSweep(sweep).read_view()  # whatever is read for the first time
        tracemalloc.start()
        live = LiveSweep(sweep)
        assert live.read_view().counts == {"finished": 2}
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert max(held) < 40_000
    assert abs(held[1] - held[0]) < 5000


def write_index(sweep: RunFolder) -> None:
    index = TrialIndex(sweep, [("val/accuracy", "max")])
    index.write(index.read().values())


def test_indexed_sweep_does_not_open_ended_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = written_sweep(tmp_path)
    trial(sweep, 0, 0.5, math.nan, status="finished")
    trial(sweep, 1, 0.2, status="failed", error="broken")
    trial(sweep, 2, 0.7)
    expected = LiveSweep(sweep).read_view()
    write_index(sweep)
    opened: list[str] = []
    metadata = RunFolder.read_metadata
    monkeypatch.setattr(
        RunFolder, "read_metadata", lambda folder: opened.append(folder.name) or metadata(folder)
    )
    view = LiveSweep(sweep).read_view()
    assert [
        (one.name, one.status, one.best, one.last, one.ended, one.values) for one in view.trials
    ] == [
        (one.name, one.status, one.best, one.last, one.ended, one.values) for one in expected.trials
    ]
    assert {*opened} == {"sweep", "trial-0001", "trial-0002"}  # one that failed may be started anew
