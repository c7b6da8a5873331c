"""One Ray for all tests that need it, and a folder outside the project with a task and hooks of its
own."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.ray_connection import Ray
from tests.ray.workers import fork_workers, forked_workers
from tests.real_systems import wait_until

# Ray gives its workers the least of the processor; these tests run beside others, and the longer
# half must not wait for them.
os.environ.setdefault("RAY_worker_niceness", "0")

TASK = '''
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from orchestrator import Task


@dataclass
class Points(Task):
    """Tells points inside a circle from points outside."""

    width: int = 8

    def model(self):
        normalized = nn.BatchNorm1d(self.width)
        return nn.Sequential(nn.Linear(2, self.width), normalized, nn.ReLU(), nn.Dropout(0.1), nn.Linear(self.width, 2))

    def data(self):
        points = torch.randn(121, 2, generator=torch.Generator().manual_seed(1))
        inside = (points.norm(dim=1) < 1).long()
        return {"train": TensorDataset(points[:80], inside[:80]), "val": TensorDataset(points[80:], inside[80:])}

    def loss(self, output, batch):
        return nn.functional.cross_entropy(output, batch[1])

    def metrics(self, output, batch):
        return {"accuracy": (output.argmax(1) == batch[1]).float()}
'''

HOOKS = '''
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hooks import Hook, Ranks


@dataclass
class Shift(Hook):
    """Record a constant and report it as `val/shift`, as a metric for sweeps."""

    by: float = 0.0

    def on_step(self, state):
        state.record(shift=self.by)

    def on_phase_end(self, state):
        if state.phase == "val":
            state.metrics["val/shift"] = self.by


@dataclass
class Accident(Hook):
    """Kills a process, once: this rank's own, or that of its driver or trial."""

    step: int = 0
    rank: int = 1
    whom: str = "worker"
    once: str = ""
    number: int = signal.SIGKILL

    def on_step(self, state):
        if state.phase != "train" or state.step != self.step or state.rank != self.rank or Path(self.once).exists():
            return
        Path(self.once).touch()
        if self.whom in ("driver", "trial"):
            import json
            os.kill(json.loads((state.artifacts / "run.json").read_text())["pid"], signal.SIGKILL)
        while self.whom in ("driver", "trial"):  # Ray ends it with its driver or trial
            signal.pause()
        os.kill(os.getpid(), self.number)


@dataclass
class Fails(Hook):
    """Raises where it is told to."""

    above: float = 1.0
    value: float = 0.0

    def on_update(self, state):
        if state.rank == state.world_size - 1 and self.value > self.above:
            print("about to fail with", self.value)
            raise ValueError(f"{self.value} is too much")
'''

WHOAMI = '''
import os
from dataclasses import dataclass
from hooks import Hook


@dataclass
class Process(Hook):
    """Records which process it runs in."""

    def on_step(self, state):
        state.record(pid=os.getpid())
'''

EXPERIMENT = """
name: points
task: circle:Points
epochs: 3
batch_size: 8
optimizer: {type: SGD, lr: 0.1, momentum: 0.9}
scheduler: {type: CosineAnnealingLR, T_max: 3}
workers: {count: 2}
hooks:
  ema: {decay: 0.9}
  checkpoint: {every: 2 steps, keep: 2, best: val/accuracy}
"""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Ray on this machine, joined by every run and sweep of these tests."""
    with forked_workers():
        fork_workers()
        with Ray(num_cpus=4) as ray:
            yield ray


@pytest.fixture(autouse=True)
def nothing_stays_reserved(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test starts or kills, all processors of the shared cluster are free again."""
    yield
    if "ray_cluster" in request.fixturenames:
        ray = request.getfixturevalue("ray_cluster")
        all_of_them = ray.cluster_resources()["CPU"]
        wait_until(
            lambda: ray.available_resources().get("CPU") == all_of_them, "all processors are free"
        )


def address_of(ray: Any) -> list[str]:
    """The flag with which another driver joins this Ray."""
    return ["--address", ray.get_runtime_context().gcs_address]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a task, hooks and an experiment that no package knows."""
    (tmp_path / "circle.py").write_text(TASK)
    (tmp_path / "mishaps.py").write_text(HOOKS)
    (tmp_path / "points.yaml").write_text(textwrap.dedent(EXPERIMENT))
    monkeypatch.chdir(tmp_path)
    return tmp_path
