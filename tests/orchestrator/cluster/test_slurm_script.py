"""The script of a Slurm job: its text, and what it does with stand-ins for Ray, the driver and
Slurm. The real ones are in tests/slurm."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.slurm_script import Allocation, make_script
from orchestrator.cluster.submission import Submission
from orchestrator.errors import ConfigError, UsageError
from tests.orchestrator.runs.written import new_run

YAML = """
name: points
task: tests.tasks:Points
epochs: 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "points.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(
    *overrides: str, storage: str = "runs", name: str | None = None, **allocation: Any
) -> list[str]:
    """Return the lines of the script of a job."""
    submission = Submission.load(Path("points.yaml"), overrides, storage, name)
    return make_script(submission, Allocation(**allocation)).splitlines()


def read_options(lines: list[str]) -> list[str]:
    """Return the options of `sbatch` in a script, as sbatch reads them."""
    return shlex.split(" ".join(line[8:] for line in lines if line.startswith("#SBATCH ")))


def read_command(lines: list[str], variable: str) -> list[str]:
    """Return a command that the script holds in an array."""
    (line,) = (line for line in lines if line.startswith(f"{variable}=("))
    return shlex.split(line.removeprefix(f"{variable}=(").removesuffix(")"))


def test_script_runs_the_same_file_with_the_same_overrides(folder: Path) -> None:
    lines = make("epochs=3", "notes=two words")
    hookyard = [sys.executable, "-m", "orchestrator"]
    where = ["--storage", f"{folder}/runs", "--name", "points"]
    overrides = ["epochs=3", "notes=two words"]
    assert read_command(lines, "start") == [*hookyard, "run", "points.yaml", *overrides, *where]
    run = f"{folder}/runs/points"
    assert read_command(lines, "resume") == [*hookyard, "resume", run, "--force-lease"]
    assert subprocess.run(["bash", "-n"], input="\n".join(lines), text=True).returncode == 0


def test_job_of_a_sweep_sweeps() -> None:
    space = "sweep={space: {optimizer.lr: {grid: [0.1, 0.2]}}, metric: train/loss}"
    assert read_command(make(space), "start")[3] == "sweep"


def test_options_ask_for_what_was_given(folder: Path) -> None:
    options = read_options(
        make(
            "workers.count=8",
            "workers.gpu=true",
            name="large",
            partition="gpu",
            nodes=2,
            gpus_per_node=4,
            cpus_per_task=16,
            time="08:00:00",
            account="lab",
            qos="high",
            sbatch=["--mem=64G", "--mail-user=a b"],
        )
    )
    expected = {
        "--job-name=large",
        "--partition=gpu",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=4",
        "--cpus-per-task=16",
        "--time=08:00:00",
        "--account=lab",
        "--qos=high",
        f"--chdir={folder}",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
    }
    assert expected <= {*options}
    assert options[-2:] == ["--mem=64G", "--mail-user=a b"]  # the last ones override


@pytest.mark.parametrize(("count", "cpus", "nodes", "per_node"), [(1, 1, 1, 1), (5, 2, 2, 5)])
def test_nodes_have_the_cpus_that_the_ranks_need(
    count: int, cpus: int, nodes: int, per_node: int
) -> None:
    options = read_options(make(f"workers={{count: {count}, cpus: {cpus}}}", nodes=nodes))
    assert f"--cpus-per-task={per_node}" in options
    assert not [option for option in options if "gpus" in option or "partition" in option]


@pytest.mark.parametrize(
    ("workers", "asked", "message"),
    [
        (
            "{count: 4}",
            {"cpus_per_task": 3},
            "need 4 CPUs, but --cpus-per-task 3 on 1 node gives 3; raise --cpus-per-task or --nodes",
        ),
        (
            "{count: 8, gpu: true}",
            {"nodes": 2, "gpus_per_node": 3},
            "need 8 GPUs, but --gpus-per-node 3 on 2 nodes gives 6",
        ),
        ("{count: 1}", {"sbatch": ["--mem=1G\nrm -r /"]}, "control character"),
    ],
)
def test_wrong_allocation_is_refused(workers: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make(f"workers={workers}", **asked)


def test_taken_name_is_refused_before_the_job_waits_in_the_queue(folder: Path) -> None:
    new_run(folder / "runs", "points", "name: points", status="finished")
    with pytest.raises(UsageError, match="exists and has finished"):
        make()
    assert read_command(make(name="other"), "start")[-1] == "other"


def test_keys_and_unset_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="contains keys"):
        make(storage="s3://key:secret@bucket/runs")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set"):
        make("environment=[WANDB_API_KEY]")


def test_value_of_an_environment_variable_is_not_in_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    text = "\n".join(make("environment=[WANDB_API_KEY]"))
    assert "hunter2" not in text
    assert "#SBATCH --export=ALL" in text


STAND_IN = """#!/bin/bash
# In place of Python: `ray start` writes its address, and a driver ends with the code in `code`.
case "$*" in
"-m ray.scripts.scripts start --head"*)
    echo "$@" >ray_arguments
    echo "$RAY_AUTH_TOKEN" >token
    temp=$(echo "$*" | sed 's/.*--temp-dir=\\([^ ]*\\).*/\\1/')
    echo "$temp" >folder
    [[ ! -e broken ]] || { echo "no port"; exit 1; }
    trap 'echo yes >ray_ended; exit 1' TERM
    echo "10.0.0.1:1234" >"$temp/ray_current_cluster"
    while :; do sleep 0.05; done ;;
"-m orchestrator show"*)
    exit "$(cat exists)" ;;
"-m orchestrator run"* | "-m orchestrator resume"*)
    echo "$@" >driver
    trap 'echo TERM >>signals; exit 130' TERM
    until [[ -s code ]]; do sleep 0.05; done
    exit "$(cat code)" ;;
esac
"""


class JobProcess:
    """A job's script as a process, with stand-ins in place of Ray, the driver and Slurm."""

    def __init__(self, folder: Path, restarts: int = 0) -> None:
        self.folder = folder
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        scontrol = folder / "bin/scontrol"
        scontrol.parent.mkdir()
        scontrol.write_text(
            f'#!/bin/bash\necho "$@" >>{folder}/scontrol\n! rm {folder}/busy 2>/dev/null\n'
        )
        scontrol.chmod(0o755)
        lines = [line.replace(sys.executable, str(stand_in)) for line in make()]
        (folder / "job.sh").write_text("\n".join(lines))
        environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": "12",
            "SLURM_NNODES": "1",
            "SLURM_CPUS_ON_NODE": "4",
            "SLURM_GPUS_ON_NODE": "2",
            "SLURM_CPUS_PER_TASK": "4",
            "SLURMD_NODENAME": "n1",
            "RAY_ADDRESS": "elsewhere:6379",
        }
        if restarts:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        self.process = subprocess.Popen(
            ["bash", "job.sh"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        )

    def read(self, name: str) -> str:
        file = self.folder / name
        return file.read_text().strip() if file.exists() else ""

    def wait_for(self, name: str) -> str:
        """Wait for a file, and return its text."""
        deadline = time.monotonic() + 30
        while not self.read(name):
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)
        return self.read(name)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and stderr."""
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error


@pytest.fixture
def started(folder: Path) -> Iterator[JobProcess]:
    job = JobProcess(folder)
    job.wait_for("driver")
    yield job
    job.process.kill()


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_exit_code_is_that_of_the_driver_and_ray_is_ended(started: JobProcess, code: int) -> None:
    assert started.read("driver").endswith("--address 10.0.0.1:1234")
    (started.folder / "code").write_text(str(code))
    assert started.end()[0] == code
    assert started.read("ray_ended")
    assert not Path(started.read("folder")).exists()
    assert not started.read("scontrol")


def test_ray_has_the_resources_of_the_job_and_ports_of_its_own(started: JobProcess) -> None:
    arguments = started.read("ray_arguments").split()
    expected = ("--port=0", "--num-cpus=4", "--num-gpus=2", "--min-worker-port=0", "--block")
    assert {*expected} <= {*arguments}
    token = started.read("token")
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert token not in started.read("ray_arguments") + started.read("driver")
    assert token not in started.read("job.sh")
    started.process.send_signal(signal.SIGTERM)
    started.end()


def test_run_is_requeued_when_its_time_is_nearly_over(started: JobProcess) -> None:
    started.process.send_signal(signal.SIGUSR1)
    exit_code, error = started.end()
    assert exit_code == 130
    assert started.read("signals") == "TERM"
    assert started.read("scontrol") == "requeue 12"
    assert "returns to the queue" in error


def test_controller_that_is_too_busy_to_requeue_is_asked_again(started: JobProcess) -> None:
    (started.folder / "busy").touch()
    started.process.send_signal(signal.SIGUSR1)
    exit_code, error = started.end()
    assert exit_code == 130
    assert started.read("scontrol").splitlines() == ["requeue 12", "requeue 12"]
    assert "does not requeue" not in error


def test_run_that_is_stopped_is_not_requeued(started: JobProcess) -> None:
    started.process.send_signal(signal.SIGTERM)
    assert started.end()[0] == 130
    assert started.read("signals") == "TERM"
    assert not started.read("scontrol")


@pytest.mark.parametrize(
    ("restarts", "exists", "verb"), [(0, 0, "run"), (1, 0, "resume"), (2, 2, "run")]
)
def test_requeued_job_resumes_its_run_if_there_is_one(
    folder: Path, restarts: int, exists: int, verb: str
) -> None:
    (folder / "exists").write_text(str(exists))
    (folder / "code").write_text("0")
    job = JobProcess(folder, restarts)
    assert job.end()[0] == 0
    assert job.read("driver").split()[2] == verb


def test_ray_that_does_not_start_is_an_error_with_its_output(folder: Path) -> None:
    (folder / "broken").touch()
    job = JobProcess(folder)
    exit_code, error = job.end()
    assert exit_code == 1
    assert "no port" in error
    assert "Ray did not start on n1." in error
    assert not job.read("driver")
