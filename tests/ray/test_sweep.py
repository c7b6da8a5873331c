"""A sweep on warm gangs in Ray Tune: what trials choose, reach and cost; what fails."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import UsageError, load_experiment, open_run, open_sweep, sweep
from tests.ray.conftest import WHOAMI

pytestmark = pytest.mark.ray

SWEEP = """
base: points.yaml
name: shifts
hooks:
  shift: {{type: "mishaps:Shift"}}
workers: {{count: {ranks}}}
sweep:
  metric: {metric}
  mode: max
  search: {search}
  trials: {trials}
  scheduler: {scheduler}
  max_concurrent: {at_once}
  space: {space}
"""


def written(folder: Path, **changes: Any) -> str:
    """A sweep file over the outside hook's own field."""
    values = {
        "ranks": 2,
        "metric": "val/shift",
        "search": "grid",
        "trials": "null",
        "scheduler": "fifo",
        "at_once": 1,
        "space": "{hooks.shift.by: {choice: [1.0, 3.0, 2.0]}}",
    }
    (folder / "sweep.yaml").write_text(SWEEP.format(**(values | changes)))
    return "sweep.yaml"


def test_trials_of_two_ranks_reuse_their_processes(ray_cluster: Any, outside: Path) -> None:
    (outside / "whoami.py").write_text(WHOAMI)
    done = sweep(
        load_experiment(written(outside), ["hooks.process={type: 'whoami:Process'}"]), "runs"
    )
    assert done.status == "finished"
    trials = done.trials
    assert trials["config/hooks.shift.by"].tolist() == [1.0, 3.0, 2.0]
    assert trials["val/shift"].tolist() == [1.0, 3.0, 2.0]
    assert trials["ranks"].tolist() == [2, 2, 2]
    assert trials["status"].tolist() == ["finished"] * 3
    assert (trials["step_s"] > 0).all()
    assert (trials["process_peak_rss_bytes"] > 0).all()
    assert (
        done.best.path
        == open_sweep("runs/shifts").best.path
        == outside / "runs/shifts/trials/trial-0001"
    )

    stats = done.stats
    # 15 training and 9 val iterations on each of 2 ranks in each of 3 trials.
    assert len(stats) == 3 * 2 * (15 + 9)
    assert stats.groupby("trial", observed=True)["shift"].unique().map(list).tolist() == [
        [1.0],
        [3.0],
        [2.0],
    ]
    assert not stats.duplicated(["trial", "rank", "phase", "epoch", "iteration"]).any()

    # A rank keeps its process from trial to trial, and none is the driver's.
    pids = stats.groupby("rank")["pid"].unique()
    assert pids.map(len).tolist() == [1, 1]
    assert len({os.getpid(), *(int(pid) for (pid,) in pids)}) == 3


def test_misspelled_metric_ends_the_sweep_as_in_one_process(
    ray_cluster: Any, outside: Path
) -> None:
    file = written(outside, ranks=1, metric="val/shfit")
    ended = []
    for local in (True, False):
        with pytest.raises(UsageError, match=r"\(did you mean 'val/shift'\?\)") as caught:
            sweep(load_experiment(file), "runs", f"local-{local}", local=local)
        done = open_sweep(f"runs/local-{local}")
        ended.append(
            (
                str(caught.value),
                done.status,
                done.folder.read_metadata().error,
                done.trials[["status", "reports", "error"]].to_numpy().tolist(),
            )
        )
    assert ended[0] == ended[1]
    assert ended[0][3] == [["failed", 1, ended[0][0]]]


def test_failed_trial_does_not_end_the_sweep(
    ray_cluster: Any, outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Three trials at a time are asked for, and there is room for two: the third waits for one of
    them."""
    space = "{hooks.fails.value: {choice: [0.0, 2.0, 0.5]}}"
    file = written(outside, metric="val/accuracy", space=space, at_once=3)
    done = sweep(load_experiment(file, ["hooks.fails={type: 'mishaps:Fails'}"]), "runs")
    arithmetic = "3 trials of 2 ranks, 2 at a time: each needs 2 CPUs; the cluster has 4 CPUs"
    assert arithmetic in (outside / "runs/shifts/log.txt").read_text()
    trials = done.trials
    assert trials["status"].tolist() == ["finished", "failed", "finished"]
    assert (
        "rank 1: hook 'fails' failed in on_update: ValueError: 2.0 is too much"
        in trials["error"].iloc[1]
    )
    assert done.count_failed_trials() == 1
    # A mistake would come again: it is not tried again, as a lost process is.
    assert [len(run.folder.read_attempts()) for run in done.runs] == [1, 1, 1]
    assert open_run(done.best.path).status == "finished"
    # The second trial is told of once, in its own words; Tune's "Trial ... completed" is kept
    # quiet.
    said = capfd.readouterr()
    assert "completed" not in said.out
    assert len(re.findall(r"^trial-0001 \[\d/3\]", said.err, re.MULTILINE)) == 1


JOBS = """
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


def test_train_jobs_of_a_sweep_resume_after_a_kill_and_stop_by_asha(
    ray_cluster: Any, outside: Path
) -> None:
    """Three of the four CPUs are taken, so that the first trial's second attempt needs what its
    first held."""
    (outside / "whoami.py").write_text(WHOAMI)
    (outside / "jobs.yaml").write_text(JOBS.format(once=outside / "happened"))
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
    assert trials["stopped"].iloc[1] == "asha ended the trial after report 1"
    assert (
        "1 at a time: each needs 1 CPU; the cluster has 4 CPUs"
        in (outside / "runs/jobs/log.txt").read_text()
    )

    # The trial's process was killed at step 7 of 40, with a checkpoint every 2; the other ended
    # after its first epoch.
    killed, stopped = done.runs
    assert [attempt.checkpoint for attempt in killed.folder.read_attempts()] == [
        None,
        "step-00000006",
    ]
    assert not stats.duplicated(["trial", "rank", "phase", "epoch", "iteration"]).any()
    assert stats.groupby(["trial", "rank"], observed=True).size().tolist() == [4 * (10 + 6), 10 + 6]
    assert json.loads((Path(stopped.checkpoint()) / "manifest.json").read_text())
    assert os.getpid() not in stats["pid"].unique()
    assert not any(is_alive(pid) for pid in stats["pid"].unique())
    assert [path.name for run in done.runs for path in Path(run.path).glob(".*")] == []


def test_a_trial_that_is_interrupted_before_its_first_report_does_not_stop_the_others(
    ray_cluster: Any, outside: Path
) -> None:
    space = "{hooks.time_limit.limit: {choice: [0.001, 3600]}}"
    file = written(outside, ranks=1, metric="val/accuracy", space=space)
    done = sweep(load_experiment(file, ["hooks.time_limit={limit: 3600}"]), "runs")
    assert done.trials["status"].tolist() == ["interrupted", "finished"]
    assert done.trials["val/accuracy"].isna().tolist() == [True, False]
