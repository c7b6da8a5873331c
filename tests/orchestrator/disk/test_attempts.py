from pathlib import Path

from hooks.position import Position
from orchestrator.disk.attempts import Attempt, measure_training_seconds, rank_folder
from orchestrator.disk.run_folder import RunFolder
from tests.orchestrator.runs.written import new_run


def begin_attempts(folder: RunFolder, count: int) -> None:
    for _ in range(count):
        folder.begin_attempt()


def lose(folder: RunFolder, number: int) -> None:
    folder.storage.delete(f"stats/attempt={number}/attempt.json")


def test_number_of_a_lost_attempt_with_rows_is_not_used_again(tmp_path: Path) -> None:
    """Otherwise rows and reports of the lost attempt would count as those of the new one."""
    folder = new_run(tmp_path, "digits", "name: digits\n")
    begin_attempts(folder, 2)
    folder.append_report({"attempt": 1, "iteration": 10, "val/loss": 0.5})
    folder.storage.write(f"{rank_folder(1, 1)}/rows-0.arrow", b"rows")
    lose(folder, 1)

    assert folder.begin_attempt("epoch-0001", Position(iteration=5)).number == 2
    assert [attempt.number for attempt in folder.read_attempts()] == [0, 2]
    assert folder.read_current_reports() == []


def test_number_of_a_lost_attempt_with_compacted_rows_is_not_used_again(tmp_path: Path) -> None:
    folder = new_run(tmp_path, "digits", "name: digits\n")
    begin_attempts(folder, 2)
    folder.storage.write("stats.parquet", b"rows of both")
    lose(folder, 1)
    assert folder.begin_attempt().number == 2


def test_compacted_rows_without_any_attempt_are_of_the_first(tmp_path: Path) -> None:
    folder = new_run(tmp_path, "digits", "name: digits\n")
    folder.storage.write("stats.parquet", b"rows")
    assert folder.begin_attempt().number == 1


def test_training_time_is_from_the_start_of_each_attempt_to_its_last_report() -> None:
    """The clock was set back in attempt 2, and attempt 3 made no report."""
    attempts = [
        Attempt(0, started="2026-01-01T00:00:00Z"),
        Attempt(1, started="2026-01-01T00:01:00Z"),
        Attempt(2, started="2026-01-01T00:02:00Z"),
        Attempt(3, started="2026-01-01T00:03:00Z"),
        Attempt(4),
    ]
    reports = [
        {"attempt": 0, "time": "2026-01-01T00:00:10Z"},
        {"attempt": 0, "time": "2026-01-01T00:00:20Z"},
        {"attempt": 1, "time": "2026-01-01T00:01:05Z"},
        {"attempt": 2, "time": "2026-01-01T00:01:59Z"},
        {"attempt": 4, "time": "2026-01-01T00:05:00Z"},
        {"step": 7},
    ]
    assert measure_training_seconds(attempts, reports) == 20 + 5
    assert measure_training_seconds([], []) == 0
