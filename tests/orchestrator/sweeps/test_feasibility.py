"""Whether an ended trial keeps its sweep's constraints, by its record and by its folder."""

import math
from pathlib import Path

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.check_settings import check_settings
from orchestrator.sweeps.feasibility import Feasibility, FeasibilityCheck
from orchestrator.tables.trial_record import TrialRecord
from tests.tasks import described

OBJECTIVES = [("val/accuracy", "max")]


def make_check(folder: Path, constraints: dict[str, str]) -> FeasibilityCheck:
    space = {"optimizer.lr": {"uniform": [0.0, 1.0]}}
    settings = {"metric": "val/accuracy", "space": space, "constraints": constraints}
    return FeasibilityCheck(RunFolder(folder), SweepSettings.model_validate(settings))


def write_trial(folder: Path) -> None:
    trial = trial_folder(str(folder), 0)
    trial.begin("name: line\n")
    trial.begin_attempt()
    trial.append_report(
        {"attempt": 0, "iteration": 4, "epoch": 0, "val/accuracy": 0.9, "val/loss": 0.75}
    )
    trial.run_file.end("finished")


@pytest.mark.parametrize(
    ("limit", "excess", "broken"),
    [("<= 0.5", 0.25, "val/loss is 0.75, not <= 0.5"), ("<= 1", -0.25, None)],
)
def test_excess_and_broken_constraints_of_a_trial(
    tmp_path: Path, limit: str, excess: float, broken: str | None
) -> None:
    write_trial(tmp_path)
    check = make_check(tmp_path, {"val/loss": limit})
    record = TrialRecord.read(trial_folder(str(tmp_path), 0), OBJECTIVES)
    expected = Feasibility([excess], broken)
    assert check.check(record) == expected
    assert check.check_folder(0) == expected


def test_a_metric_without_a_phase_is_checked_if_the_sweep_names_it(tmp_path: Path) -> None:
    """A custom hook may report any name."""
    space = {"optimizer.lr": {"uniform": [0.0, 1.0]}}
    settings = SweepSettings.model_validate(
        {"metric": "delay", "mode": "min", "space": space, "constraints": {"delay": "<= 2"}}
    )
    assert list(check_settings(settings, described())) == []
    trial = trial_folder(str(tmp_path), 0)
    trial.begin("name: line\n")
    trial.begin_attempt()
    trial.append_report({"attempt": 0, "iteration": 4, "epoch": 0, "delay": 2.5})
    trial.run_file.end("finished")
    found = FeasibilityCheck(RunFolder(tmp_path), settings).check_folder(0)
    assert found == Feasibility([0.5], "delay is 2.5, not <= 2")


def test_a_trial_with_a_damaged_file_is_infeasible_and_the_sweep_continues(tmp_path: Path) -> None:
    write_trial(tmp_path)
    trial_folder(str(tmp_path), 0).storage.write("stats.parquet", "garbage")
    found = make_check(tmp_path, {"val/loss": "<= 1"}).check_folder(0)
    assert found.excesses == [math.inf]
    assert found.broken is not None
    assert "stats.parquet is damaged" in found.broken


def test_nothing_is_read_without_constraints(tmp_path: Path) -> None:
    """Trial 0 has no folder."""
    assert make_check(tmp_path, {}).check_folder(0) == Feasibility()
