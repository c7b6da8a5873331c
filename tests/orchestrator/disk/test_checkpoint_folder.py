"""The folder of a run's checkpoints: in the run, or under an `out_dir` that several runs share."""

from pathlib import Path

import pytest

from orchestrator import sweep
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, list_checkpoints
from orchestrator.disk.run_folder import RunFolder
from tests.tasks import described

SPACE = {"optimizer.lr": {"grid": [0.1, 0.01]}}
SETTINGS = {"metric": "val/accuracy", "mode": "max", "space": SPACE}


@pytest.mark.parametrize(
    ("run", "folder"),
    [
        ("runs/one", "kept/one"),
        ("runs/rates/trials/trial-0003", "kept/rates/trial-0003"),
        ("runs/other/trials/trial-0003", "kept/other/trial-0003"),
        ("trials/one", "kept/one"),
    ],
)
def test_each_run_has_its_own_folder_in_an_out_dir(tmp_path: Path, run: str, folder: str) -> None:
    experiment = {"hooks": {"checkpoint": {"out_dir": str(tmp_path / "kept")}}}
    found = find_checkpoint_folder(RunFolder(tmp_path / run), experiment)
    assert found.path == str(tmp_path / folder)


def test_sweeps_share_an_out_dir(tmp_path: Path) -> None:
    hooks = {"checkpoint": {"out_dir": str(tmp_path / "kept")}}
    experiment = described(epochs=1, hooks=hooks, sweep=SETTINGS)
    for name in ("first", "second"):
        outcome = sweep(experiment, tmp_path / "runs", name, local=True)
        assert [run.status for run in outcome.runs] == ["finished", "finished"]

    trials = [
        f"{name}/trials/trial-{number:04d}" for name in ("first", "second") for number in (0, 1)
    ]
    checkpoints = [list_checkpoints(RunFolder(tmp_path / "runs" / trial)) for trial in trials]
    assert checkpoints == [["epoch-0001"]] * 4
