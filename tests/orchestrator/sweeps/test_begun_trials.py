"""Trials that begin together."""

from pathlib import Path

from orchestrator.disk.new_run import create_run
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.sweeps.begun_trials import begin_trials
from orchestrator.sweeps.search.search import NumberedValues
from tests.tasks import described

SWEEP = {"metric": "val/loss", "trials": 1, "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}}}


def test_trials_begin_without_those_whose_values_are_refused(tmp_path: Path) -> None:
    create_run(tmp_path, "sweep", "name: sweep\n")
    experiment = described(sweep=SWEEP)
    assert experiment.sweep is not None
    members: list[NumberedValues] = [
        {"number": 0, "values": {"optimizer.lr": 0.1}},
        {"number": 1, "values": {"hooks.speed.every": "never"}},
        {"number": 2, "values": {"optimizer.lr": 0.2}},
    ]
    location = str(tmp_path / "sweep")
    begun = begin_trials(members, location, experiment.source, experiment.sweep)
    assert [trial.number for trial in begun.trials] == [0, 2]
    ((refused, error),) = begun.refused
    assert refused == members[1]
    assert "hooks.speed" in str(error)
    metadata = trial_folder(location, 1).read_metadata()
    assert (metadata.status, metadata.error, metadata.is_user_error) == ("failed", str(error), True)
