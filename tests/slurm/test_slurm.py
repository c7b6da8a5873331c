"""Runs and sweeps as jobs of a real Slurm: on two nodes, cut off and requeued, beside each other on
one node, stopped and failed."""

import re
from pathlib import Path

import pytest

from orchestrator import open_run, open_sweep
from tests.slurm.conftest import Slurm

KEY = ["rank", "phase", "epoch", "iteration"]
STEPS = 1000


@pytest.fixture
def storage(slurm: Slurm, request: pytest.FixtureRequest) -> Path:
    """A storage of the test's own. Its hook waits for `fast` in the same folder."""
    folder = slurm.runs / request.node.name
    folder.mkdir(parents=True)
    return folder


def make_fast(storage: Path) -> None:
    (storage / "fast").touch()


def arguments(storage: Path, *more: str) -> list[str]:
    file = f"hooks.slow.file={storage}/fast"
    return ["points.yaml", file, *more, "--storage", str(storage)]


def test_run_on_two_nodes_saves_before_its_time_is_over_and_continues_after_the_requeue(
    slurm: Slurm, storage: Path
) -> None:
    flags = ("--nodes=2", "--time=30", "--partition=short")
    job = slurm.submit(*arguments(storage, "workers.count=2"), *flags)
    slurm.wait_for_line(job, "training with Ray Train on 2 workers")
    # Less is left than the two minutes before the end at which the run is to save.
    minutes = 2 + int(slurm.show(job, "RunTime").split(":")[1])
    slurm.call("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
    slurm.wait_for_line(job, "it returns to the queue")
    make_fast(storage)
    exit_code, log = slurm.follow(job)

    assert exit_code == 0, log
    assert "preflight: 2 nodes passed" in log
    run = open_run(storage / "points")
    saved = re.search(r"Resumed from step-0*(\d+) with 2 ranks", log)
    assert saved
    assert 0 < int(saved[1]) < STEPS
    assert run.status == "finished"
    assert len(run.stats) == 2 * STEPS
    assert not run.stats.duplicated(KEY).any()
    assert slurm.show(job, "Restarts") == "1"
    _, status = slurm.hookyard("status", job)
    assert f"{job}: SUCCEEDED, exit code 0" in status
    assert "COMPLETED, 1 restart" in status


def test_sweep_is_requeued_and_makes_each_step_once(slurm: Slurm, storage: Path) -> None:
    space = "sweep={space: {optimizer.lr: {grid: [0.01, 0.02]}}, metric: train/loss}"
    job = slurm.submit(*arguments(storage, space), "--cpus-per-task=2", "--time=30")
    slurm.wait_for_line(job, "loss")
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_for_line(job, "it returns to the queue")
    make_fast(storage)
    exit_code, log = slurm.follow(job)

    assert exit_code == 0, log
    sweep = open_sweep(storage / "points")
    assert list(sweep.trials["status"]) == ["finished", "finished"]
    assert len(sweep.stats) == 2 * STEPS
    assert not sweep.stats.duplicated(["trial", *KEY]).any()


def test_jobs_on_one_node_do_not_meet_and_each_keeps_its_exit_code(
    slurm: Slurm, storage: Path
) -> None:
    on_one_node = "--sbatch=--nodelist=n1"
    good = slurm.submit(*arguments(storage), "--name=good", on_one_node)
    other = slurm.submit(*arguments(storage), "--name=other", on_one_node)
    for job in (good, other):
        slurm.wait_for_line(job, "training with Ray Train on 1 worker")
    failing = slurm.submit(
        *arguments(storage, "task_args.fails=true"), "--name=failing", on_one_node
    )
    exit_code, log = slurm.follow(failing)
    assert exit_code == 1, log
    assert "this task fails" in log
    assert {slurm.show(job, "JobState") for job in (good, other)} == {"RUNNING"}
    addresses = {
        re.search(r"joining Ray at (\S+)", slurm.read_log(job))[1]  # type: ignore[index]
        for job in (good, other, failing)
    }
    assert len(addresses) == 3

    assert slurm.hookyard("stop", other)[0] == 0
    exit_code, log = slurm.follow(other)
    assert exit_code == 130, log
    assert open_run(storage / "other").status == "interrupted"
    assert slurm.show(other, "Restarts") == "0"

    make_fast(storage)
    assert slurm.follow(good)[0] == 0
    assert len(open_run(storage / "good").stats) == STEPS


def test_job_in_the_queue_is_removed(slurm: Slurm, storage: Path) -> None:
    job = slurm.submit(*arguments(storage), "--sbatch=--hold")
    assert f"{job}: PENDING" in slurm.hookyard("status", job)[1]
    assert slurm.hookyard("logs", job) == (0, "")
    assert slurm.hookyard("stop", job)[0] == 0
    assert slurm.wait_for_state(job, "CANCELLED")
    assert slurm.follow(job)[0] == 130


def test_rejected_and_unknown_jobs_are_errors(slurm: Slurm, storage: Path) -> None:
    flags = ("--slurm", "--partition=unknown")
    exit_code, output = slurm.hookyard("submit", *arguments(storage), *flags)
    assert exit_code == 2
    assert "invalid partition" in output
    exit_code, output = slurm.hookyard("status", "987654")
    assert exit_code == 2
    assert "Invalid job id" in output


def test_nothing_is_left_on_a_node(slurm: Slurm) -> None:
    """Runs last: all jobs before have ended."""
    assert slurm.list_ray_folders() == slurm.folders_before
