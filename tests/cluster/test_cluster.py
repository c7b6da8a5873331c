"""Digits on three hosts: a run whose ranks are on different ones, a sweep whose gangs are, a job, a cut cable, a dead host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import open_run, open_sweep
from tests.cluster.conftest import HEAD, NAMES, Cluster
from tests.cluster.hosts import BIN, ROOT, SHARED

DIGITS = ["experiments/digits.yaml", "hooks.progress_bar=null", "hooks.tensorboard=null"]
LONG = ["epochs=12", "scheduler.T_max=12", "hooks.checkpoint.every=10 steps"]
"""Long enough that a host can go while it trains."""
KEY = ["rank", "phase", "epoch", "iteration"]


def ran(cluster: Cluster, *words: str) -> str:
    """What a command on the head said, once it is done."""
    done = cluster.head.run(*cluster.hookyard(*words), **cluster.options())
    assert done.returncode == 0, done.stderr
    return done.stderr


def weights(run: Any) -> Any:
    """What the run came to: the hash of its last checkpoint's weights."""
    return json.loads((run.checkpoint("last") / "manifest.json").read_text())["files"]["model.pt"]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Any:
    ran(cluster, "run", *DIGITS, *LONG, "--name", "undisturbed")
    return open_run(str(cluster.folder / "runs/undisturbed"))


def test_ranks_of_a_run_are_on_different_hosts_and_the_table_says_where(undisturbed: Any) -> None:
    nodes = undisturbed.stats.groupby("rank")["node"].unique()
    assert all(len(names) == 1 for names in nodes)
    assert len({names[0] for names in nodes}) == 2
    assert undisturbed.status == "finished"
    assert not undisturbed.stats.duplicated(KEY).any()


def test_every_host_is_looked_at_before_a_run(cluster: Cluster) -> None:
    done = cluster.head.run(str(BIN / "hookyard"), "doctor", "--address", "auto", **cluster.options())
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in NAMES)


def test_the_gangs_of_a_sweep_span_hosts(cluster: Cluster) -> None:
    ran(cluster, "sweep", "experiments/digits_ema_sweep.yaml", "sweep.trials=2", "epochs=1", "scheduler.T_max=1", "--name", "gangs")
    done = open_sweep(str(cluster.folder / "runs/gangs"))
    assert done.trials["status"].tolist() == ["finished"] * 2
    assert (done.stats.groupby("trial")["node"].nunique() == 2).all()


@pytest.fixture
def tunnel(cluster: Cluster) -> Iterator[str]:
    """The dashboard of the head, which listens on its loopback alone, as seen through ssh from the operator's machine."""
    ssh = ["ssh", "-i", f"{SHARED}/key", "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oExitOnForwardFailure=yes"]
    done = cluster.hosts.operator.run(*ssh, "-f", "-N", "-M", "-S", "/tmp/tunnel", "-L", "8265:127.0.0.1:8265", f"root@{HEAD}", capture_output=False)
    assert done.returncode == 0
    yield "http://127.0.0.1:8265"
    cluster.hosts.operator.run("ssh", "-S", "/tmp/tunnel", "-O", "exit", HEAD)


def test_a_job_is_submitted_from_a_machine_that_is_no_part_of_the_cluster(cluster: Cluster, tunnel: str) -> None:
    words = ["submit", *DIGITS, "epochs=1", "scheduler.T_max=1", "--name", "job", "--storage", str(SHARED / "runs"), "--address", tunnel]
    done = cluster.hosts.operator.run(str(BIN / "hookyard"), *words, **cluster.options())
    assert done.returncode == 0, done.stdout + done.stderr
    assert open_run(str(cluster.folder / "runs/job")).status == "finished"


def test_a_run_whose_host_is_cut_off_goes_on_without_it(cluster: Cluster, undisturbed: Any) -> None:
    host, run = disturbed(cluster, "cut", cluster.hosts.cut)
    cluster.hosts.mend(host)
    assert weights(run) == weights(undisturbed)
    cluster.wait_for(*NAMES)


def test_a_run_whose_host_dies_goes_on_without_it(cluster: Cluster, undisturbed: Any) -> None:
    _, run = disturbed(cluster, "dead", lambda name: cluster.hosts[name].kill())
    assert weights(run) == weights(undisturbed)


def disturbed(cluster: Cluster, name: str, disturb: Any) -> tuple[str, Any]:
    """A run during which something happens to a host of one of its ranks, which is not the head; the host, and the run."""
    driver = cluster.head.start(*cluster.hookyard("run", *DIGITS, *LONG, "--name", name), **cluster.options())
    folder = cluster.folder / "runs" / name
    while not list(folder.glob("checkpoints/*/manifest.json")):
        assert driver.poll() is None, driver.communicate()[0]
    run = open_run(str(folder))
    places = {str(node) for node in run.stats["node"].unique()} - {HEAD}
    victim = max(places)
    disturb(victim)
    said, _ = driver.communicate(timeout=280)
    assert driver.returncode == 0, said
    run = open_run(str(folder))
    assert run.status == "finished"
    assert not run.stats.duplicated(KEY).any()
    first, second = run.folder.attempts()
    assert first["checkpoint"] is None
    assert second["checkpoint"].startswith("step-")
    assert victim not in set(run.stats[run.stats["attempt"] == run.stats["attempt"].max()]["node"])
    return victim, run


def test_the_project_is_not_where_hosts_keep_their_own_files() -> None:
    """Else what a test sees would depend on which host wrote last."""
    assert not Path(SHARED).is_relative_to(ROOT)
