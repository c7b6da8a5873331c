"""A run from its folder to its end, and what it leaves."""

import json
import os
from pathlib import Path

from orchestrator import run
from orchestrator.experiment.load import load_experiment
from orchestrator.runs.result import Run
from tests.tasks import described


def test_run_writes_its_folder(finished: Run) -> None:
    folder = Path(finished.path)
    assert finished.status == "finished"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".driver",
        "checkpoints",
        "experiment.yaml",
        "hooks.parquet",
        "log.txt",
        "metrics.jsonl",
        "run.json",
        "source.json",
        "stats",
        "stats.parquet",
    ]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()) == [
        "epoch-0001",
        "epoch-0002",
    ]
    assert sorted(path.name for path in (folder / "checkpoints/epoch-0002").iterdir()) == [
        "ema.pt",
        "hooks.pt",
        "manifest.json",
        "model.pt",
        "optimizer.pt",
        "rank-0000.pt",
    ]
    assert [path.name for path in (folder / "stats/attempt=0").iterdir() if path.is_file()] == [
        "attempt.json"
    ]


def test_recorded_experiment_can_be_run_again(finished: Run) -> None:
    about = json.loads((Path(finished.path) / "run.json").read_text())
    assert (about["status"], about["attempts"], about["local"], about["seed"]) == (
        "finished",
        1,
        True,
        0,
    )
    assert (about["ranks"], about["hosts"]) == (1, [os.uname().nodename])
    again = load_experiment(Path(finished.path) / "experiment.yaml")
    assert again == described(
        task_args={"test": 5}, hooks={"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}}
    )


def test_local_run_says_that_it_has_one_process(tmp_path: Path) -> None:
    done = run(described(epochs=1, workers={"count": 3}), tmp_path, local=True)
    assert done.stats["rank"].unique().tolist() == [0]
    assert "one process instead of 3 workers" in (tmp_path / "points/log.txt").read_text()
