"""The finding on a run that failed or lost its driver. An epoch of these runs has 100 iterations."""

from pathlib import Path

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor import Finding, diagnose_run
from orchestrator.runs.result import Run
from tests.orchestrator.doctor.runs import FALLING, training
from tests.orchestrator.runs.written import NOBODY, change, rows_of, written_run


def written(root: Path, iterations: int) -> RunFolder:
    folder = written_run(root)
    if iterations:
        rows = training(2, iterations, loss=FALLING[:iterations], samples=0)
        rows_of(folder, rows)
    return folder


def find_first(folder: RunFolder) -> Finding:
    run = Run(folder)
    diagnosis = diagnose_run(folder, run.rows(), run.hook_costs)
    assert not diagnosis.is_healthy
    return diagnosis.findings[0]


@pytest.mark.parametrize("iterations", [150, 0])
def test_failure_is_the_first_finding(tmp_path: Path, iterations: int) -> None:
    folder = written(tmp_path, iterations)
    folder.run_file.end("failed", error="rank 1: ValueError: broken\nand more", is_user_error=True)
    found = find_first(folder)
    assert (found.kind, found.sentence) == (
        "failure",
        "the run failed: rank 1: ValueError: broken",
    )
    command = f"hookyard replay {folder} --iteration 151 repeats it"
    assert (command in found.advice) == (iterations == 150)


def test_failure_after_an_epoch_is_not_replayed(tmp_path: Path) -> None:
    folder = written(tmp_path, 200)
    folder.run_file.end("failed", error="rank 0: OSError: disk full", is_user_error=False)
    assert find_first(folder).advice == f"hookyard resume {folder}"


def test_failure_may_have_no_message(tmp_path: Path) -> None:
    folder = written(tmp_path, 0)
    folder.run_file.end("failed", error=" \n")
    assert find_first(folder).sentence == "the run failed: without an error message"


def test_lost_driver_is_the_first_finding(tmp_path: Path) -> None:
    folder = written(tmp_path, 150)
    change(folder, pid=NOBODY)
    found = find_first(folder)
    assert (found.kind, found.numbers) == ("failure", {"status": "lost"})
    assert found.advice == f"hookyard resume {folder}"
