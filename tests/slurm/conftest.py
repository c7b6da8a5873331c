"""A Slurm of two nodes on this machine, with a controller and a munge of its own; where its
programs are missing, the tests are skipped."""

import getpass
import os
import re
import secrets
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real_systems import explain_missing, mark_tests, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "sinfo", "squeue")


def why_not() -> str:
    """Return why there can be no Slurm here; nothing where there can."""
    return explain_missing("the nodes of the test's Slurm", PROGRAMS, "slurm-wlm munge")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_tests(items, Path(__file__).parent, "slurm", 900, why_not)


@dataclass
class Slurm:
    """Slurm, and a folder that its nodes share."""

    folder: Path
    """The current folder of the jobs."""
    environment: dict[str, str]
    folders_before: set[Path]
    """Folders of Ray that were there before."""

    @staticmethod
    def list_ray_folders() -> set[Path]:
        return set(Path("/tmp").glob("ray-??????"))

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def call(self, *command: str) -> str:
        """Return the output of a command of Slurm's."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `hookyard` in the folder."""
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=self.folder,
            env={**self.environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def hookyard(self, *arguments: str) -> tuple[int, str]:
        """Run `hookyard` in the folder; return its exit code and its output."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        return process.returncode, output

    def submit(self, *arguments: str) -> str:
        """Submit a job, and return its number."""
        exit_code, output = self.hookyard("submit", *arguments, "--slurm", "--detach")
        assert exit_code == 0, output
        return output.split()[0]

    def show(self, job: str, field: str) -> str:
        """Return what Slurm says about a job."""
        found = re.search(rf"\b{field}=(\S*)", self.call("scontrol", "show", "job", job))
        assert found
        return found[1]

    def wait_for_state(self, job: str, *states: str) -> str:
        """Wait until a job is in one of these states, and return it."""
        wait_until(lambda: self.show(job, "JobState") in states, f"{job} is {states}")
        return self.show(job, "JobState")

    def read_log(self, job: str) -> str:
        file = Path(self.show(job, "StdOut"))
        return file.read_text() if file.exists() else ""

    def wait_for_line(self, job: str, text: str) -> None:
        """Wait until the log of a job contains a text."""

        def has_line() -> bool:
            log = self.read_log(job)
            ended = self.show(job, "JobState") in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
            assert text in log or not ended, log
            return text in log

        wait_until(has_line, f"{job} logs {text!r}")

    def follow(self, job: str) -> tuple[int, str]:
        """Wait for the end of a job, without the two minutes before a requeued one may start.

        Returns its exit code and its output, as `hookyard logs` has them.
        """
        with self.start("logs", job, "--follow") as process:
            while process.poll() is None:
                if self.show(job, "Reason") == "BeginTime":
                    # A node takes a job that starts in the second of its own end for the one that
                    # it was told to end, and fails it without a word in its log.
                    time.sleep(2)
                    self.call("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=60")
                time.sleep(1)
            assert process.stdout is not None
            return process.returncode, process.stdout.read()


TASK = '''
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from hooks import Hook
from torch import nn
from torch.utils.data import TensorDataset

from orchestrator import Task


@dataclass
class Points(Task):
    """Tells points inside a circle from points outside."""

    fails: bool = False

    def model(self):
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))

    def data(self):
        points = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
        return {"train": TensorDataset(points, (points.norm(dim=1) < 1).long())}

    def loss(self, output, batch):
        if self.fails:
            raise ValueError("this task fails")
        return nn.functional.cross_entropy(output, batch[1])


@dataclass
class SlowUntil(Hook):
    """Takes a second in each step until a file exists, so a job lasts as long as its test."""

    file: str = ""

    def on_step(self, state):
        if not Path(self.file).exists():
            time.sleep(1)
'''

EXPERIMENT = """
name: points
task: points:Points
steps: 1000
batch_size: 8
hooks:
  checkpoint: {every: 400 steps}
  progress_bar: null
  tensorboard: null
  slow: {type: "points:SlowUntil", file: fast}
"""


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def find_free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    work = folder / "work"
    for part in (work, *(folder / name for name in ("state", "n1", "n2"))):
        part.mkdir()
    (work / "points.py").write_text(TASK)
    (work / "points.yaml").write_text(EXPERIMENT)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host, user = socket.gethostname(), getpass.getuser()
    controller, first, second = find_free_ports(3)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        textwrap.dedent(f"""
        ClusterName=test
        SlurmctldHost={host}(127.0.0.1)
        SlurmctldPort={controller}
        SlurmUser={user}
        SlurmdUser={user}
        AuthType=auth/munge
        AuthInfo=socket={folder}/munge.socket
        StateSaveLocation={folder}/state
        SlurmctldPidFile={folder}/controller.pid
        SlurmctldLogFile={folder}/controller.log
        SlurmdSpoolDir={folder}/%n
        SlurmdPidFile={folder}/%n.pid
        SlurmdLogFile={folder}/%n.log
        SlurmdParameters=config_overrides
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        SelectType=select/cons_tres
        SelectTypeParameters=CR_Core
        MpiDefault=none
        ReturnToService=2
        NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 RealMemory=1000
        NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 RealMemory=1000
        PartitionName=short Nodes=ALL Default=YES State=UP
        """)
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "SLURM_", "SBATCH_"))
    }
    environment = clean | {"SLURM_CONF": str(configuration), "TMPDIR": str(folder)}
    made = Slurm(work, environment, Slurm.list_ray_folders())
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    for name in ("socket", "pid-file", "log-file", "seed-file"):
        munged.append(f"--{name}={folder}/munge.{name.removesuffix('-file')}")
    with ExitStack() as stack:
        stack.enter_context(running(*munged))
        stack.enter_context(running("slurmctld", "-D", "-f", str(configuration)))
        for node in ("n1", "n2"):
            stack.enter_context(running("slurmd", "-D", "-N", node, "-f", str(configuration)))
        wait_until(
            lambda: made.call("sinfo", "--noheader", "--format=%t %D").strip() == "idle 2",
            "both nodes are idle",
        )
        yield made
        made.call("scancel", f"--user={user}")
        wait_until(lambda: not made.call("squeue", "--noheader"), "all jobs have ended")
