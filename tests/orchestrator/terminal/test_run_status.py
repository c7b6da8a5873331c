"""The state of a run, read from its files."""

from pathlib import Path

import pytest

from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.run_folder import RunFolder
from orchestrator.experiment.load import to_yaml
from orchestrator.terminal.run_status import LiveRun
from orchestrator.terminal.run_view import RunView
from tests.orchestrator.doctor.runs import FALLING, slower, training
from tests.orchestrator.runs.written import NOBODY, age, begun, change, rows_of, written_run
from tests.tasks import described


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two ranks, of which rank 1 takes 20 ms more in each forward pass, after 200 of 400
    iterations."""
    made = written_run(tmp_path)
    rows = training(
        2, 200, slower("forward_s", 1, 0.02), loss=FALLING, batch_size=8, samples=0, rss_bytes=2**20
    )
    rows_of(made, rows)
    made.append_report(
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
    folder.append_report(
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
    folder.run_file.end("failed", error="rank 1: out of memory")
    ended = live.read_view()
    assert (ended.status, ended.error, ended.progress.eta_s, ended.progress.phase) == (
        "failed",
        "rank 1: out of memory",
        None,
        None,
    )


def test_resume_with_other_epochs_shows_them_once_its_attempt_has_begun(folder: RunFolder) -> None:
    live = LiveRun(folder)
    assert live.read_view().progress.epochs == 4
    folder.write_experiment(to_yaml(described(epochs=8, batch_size=8)), None)
    begun(folder)
    progress = live.read_view().progress
    assert (progress.epochs, progress.steps) == (8, None)


def slow_ranks(view: RunView) -> list[int]:
    return [rank.rank for rank in view.ranks if rank.timing and rank.timing.slowest]


def test_run_without_rows(tmp_path: Path) -> None:
    folder = written_run(tmp_path)
    view = LiveRun(folder).read_view()
    assert (view.progress.share, view.ranks, view.notice) == (0.0, (), None)


def test_run_without_a_driver_is_lost(folder: RunFolder) -> None:
    change(folder, pid=NOBODY)
    view = LiveRun(folder, age(folder, 40)).read_view()
    assert view.status == "lost"
    assert f"(process {NOBODY} on " in str(view.notice)
    assert "is gone; its last row is 40 s old" in str(view.notice)


def test_ended_run_shows_its_end(folder: RunFolder) -> None:
    compact(folder.storage, folder.read_attempts())
    folder.append_report(
        {
            "attempt": 0,
            "time": "2026-01-01T00:00:09Z",
            "epoch": 1,
            "step": 200,
            "iteration": 200,
            "val/accuracy": 0.8,
        }
    )
    folder.run_file.end("finished")
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
