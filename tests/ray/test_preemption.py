"""Drained nodes, and ranks that get SIGTERM: the run saves, and continues on another node without
repeating steps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import open_run
from tests.ray.test_run import KEY, assert_same_weights

pytestmark = pytest.mark.ray

HOOK = '''
import os, signal, time
from dataclasses import dataclass
from pathlib import Path

from hooks import Hook


@dataclass
class Diary(Hook):
    """Writes each step, and warns its own process once, after the run has left a node."""

    path: str = ""
    warned_at: int = 0
    pause_s: float = 0.0  # at each step after the 6th, until the run resumes

    def on_load(self, state, checkpoint):
        self.pause_s = 0.0

    def on_step(self, state):
        if state.phase != "train":
            return
        if state.step > 6:
            time.sleep(self.pause_s)
        with open(self.path, "a") as file:
            file.write(f"{state.rank} {state.step}\\n")
        if state.rank == 1 and state.step == self.warned_at:
            os.kill(os.getpid(), signal.SIGTERM)
'''

DRIVER = """
import json, sys, threading, time
from pathlib import Path
from orchestrator import load_experiment, run
from orchestrator.engines.ray_environment import set_environment
from tests.ray.workers import fork_workers
set_environment(None)
fork_workers()
import ray
from ray.cluster_utils import Cluster

engine, warned_at = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=2)
used = []

def nodes():
    groups = ray.util.placement_group_table().values()
    return {node for group in groups if group["state"] == "CREATED" for node in group["bundles_to_node_id"].values()}

def drain():
    while not Path("diary").exists() or len(Path("diary").read_text().splitlines()) < 12:
        time.sleep(0.05)
    used.extend(nodes())
    deadline_ms = int(time.time() * 1000) + 60_000
    ray._private.worker.global_worker.gcs_client.drain_node(used[0], 2, "a spot machine", deadline_ms, timeout=10)

def load(**diary):
    return load_experiment("points.yaml", ["epochs=8", f"hooks.diary={dict(diary, type='diary:Diary')}"])

threading.Thread(target=drain, daemon=True).start()
drained = load(path="diary", warned_at=int(warned_at), pause_s=0.5)
run(drained, "runs", "drained", engine=engine, address=cluster.address)
if engine == "gang":
    run(load(path="other"), "runs", "undisturbed", engine=engine, address=cluster.address)
print(json.dumps(used))
"""


@pytest.mark.parametrize(("engine", "warned_at", "attempts"), [("gang", 30, 3), ("train", 0, 2)])
def test_run_leaves_a_drained_node_without_repeating_a_step(
    ray_cluster: Any, outside: Path, engine: str, warned_at: int, attempts: int
) -> None:
    (outside / "diary.py").write_text(HOOK)
    (outside / "driver.py").write_text(DRIVER)
    command = [sys.executable, "driver.py", engine, str(warned_at)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
    assert driver.returncode == 0, driver.stderr
    (drained,) = json.loads(driver.stdout.splitlines()[-1])
    assert (
        f"node {drained[:8]} will be taken away; the ranks save and continue elsewhere"
        in driver.stderr
    )
    assert "Preempted after step" in driver.stderr
    assert "lost" not in driver.stderr

    run = open_run("runs/drained")
    assert run.status == "finished"
    assert len(run.folder.read_attempts()) == attempts
    steps = [tuple(map(int, line.split())) for line in (outside / "diary").read_text().splitlines()]
    assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in range(1, 41)]
    assert not run.stats.duplicated(KEY).any()
    if engine == "gang":
        undisturbed = open_run("runs/undisturbed")
        assert_same_weights(run, undisturbed)
        losses = [done.stats.set_index(KEY)["loss"].sort_index() for done in (run, undisturbed)]
        pd.testing.assert_series_equal(*losses, check_exact=True)
