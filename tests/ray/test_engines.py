"""Trials as Ray Train jobs: stopped by the scheduler, and gone on with after their process was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load_experiment, sweep
from tests.ray.conftest import WHOAMI

pytestmark = pytest.mark.ray

SWEEP = """
base: points.yaml
name: jobs
epochs: 4
workers: {{count: 1}}
hooks:
  shift: {{type: "mishaps:Shift"}}
  accident: {{type: "mishaps:Accident", step: 7, whom: trial, rank: 0, once: {once}}}
  process: {{type: "whoami:Process"}}
sweep:
  engine: train
  metric: val/shift
  mode: max
  search: grid
  scheduler: asha
  max_concurrent: 1
  space: {{hooks.shift.by: {{choice: [2.0, 1.0]}}}}
"""


def is_alive(pid: float) -> bool:
    """Whether a process is there, and no zombie."""
    status = Path(f"/proc/{pid:.0f}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_train_jobs_of_a_sweep_resume_after_a_kill_and_stop_by_asha(ray_cluster: Any, outside: Path) -> None:
    """Three of the four CPUs are taken, so that the first trial's second attempt needs what its first held."""
    (outside / "whoami.py").write_text(WHOAMI)
    (outside / "jobs.yaml").write_text(SWEEP.format(once=outside / "happened"))
    taken = ray_cluster.util.placement_group([{"CPU": 3}])
    try:
        done = sweep(load_experiment("jobs.yaml"), "runs")
    finally:
        ray_cluster.util.remove_placement_group(taken)
    trials, stats = done.trials, done.stats
    assert (outside / "happened").exists()
    assert trials["status"].tolist() == ["finished", "stopped"]
    assert trials["reports"].tolist() == [4, 1]
    assert trials["val/shift"].tolist() == [2.0, 1.0]
    assert trials["stopped"].iloc[1] == "the scheduler ended the trial"
    assert "1 at a time: each needs 1 CPU; the cluster has 4 CPUs" in (outside / "runs/jobs/log.txt").read_text()

    # The trial's process was killed at step 7 of 40, with a checkpoint every 2; the other ended after its first epoch.
    killed, stopped = done.runs
    assert [attempt.checkpoint for attempt in killed.folder.read_attempts()] == [None, "step-00000006"]
    assert not stats.duplicated(["trial", "rank", "phase", "epoch", "iteration"]).any()
    assert stats.groupby(["trial", "rank"], observed=True).size().tolist() == [4 * (10 + 6), 10 + 6]
    assert json.loads((Path(stopped.checkpoint()) / "manifest.json").read_text())
    assert os.getpid() not in stats["pid"].unique()
    assert not any(is_alive(pid) for pid in stats["pid"].unique())
    assert [path.name for run in done.runs for path in Path(run.path).glob(".*")] == []
