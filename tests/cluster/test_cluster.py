"""Digits on three hosts: runs and sweeps across them, a job, unfit nodes, a cut cable, a drained
and a dead host.

The tests stand in the order in which they leave the hosts: the last one loses one for good.
"""

import contextlib
import re
import shlex
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import open_run
from orchestrator.disk.run_folder import RunFolder
from tests.cluster.conftest import HEAD, NAMES, RUNS, Cluster
from tests.cluster.hosts import BIN, ROOT

DIGITS = ["experiments/digits.yaml", "hooks.progress_bar=null", "hooks.tensorboard=null"]
SHORT = ["epochs=1"]
LONG = ["epochs=12", "hooks.checkpoint.every=10 steps", "workers.count=3"]
"""Long enough that a host can go while it trains, and with a rank on every host."""
KEY = ["rank", "phase", "epoch", "iteration"]
SITE = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Any:
    """A run with a rank on every host, started as the file that ships says."""
    command = shlex.join(
        [
            "hookyard",
            "run",
            *DIGITS,
            *LONG,
            "--name",
            "undisturbed",
            "--address",
            "auto",
            "--storage",
            str(RUNS),
        ]
    )
    cluster.ray("exec", str(cluster.config), f"cd {ROOT} && {command}")
    return open_run(str(cluster.folder / "runs/undisturbed"))


def test_ranks_of_a_run_are_on_different_hosts_and_the_table_says_where(undisturbed: Any) -> None:
    assert undisturbed.status == "finished"
    nodes = undisturbed.stats.groupby("rank")["node"].unique()
    assert sorted(str(name) for names in nodes for name in names) == sorted(NAMES)
    assert not undisturbed.stats.duplicated(KEY).any()


def test_every_host_is_looked_at_before_a_run(cluster: Cluster) -> None:
    done = cluster.head.run(*cluster.hookyard("doctor"), **cluster.options())
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in NAMES)


def test_nodes_that_are_not_fit_are_named_and_nothing_is_started(cluster: Cluster) -> None:
    """One host lacks a package that the task needs and has another torch, one cannot write where
    the run would lie."""
    kept = sorted((cluster.folder / "runs").iterdir())
    beta, gamma = (cluster.hosts[name] for name in NAMES[1:])
    with beta.own(SITE), gamma.read_only(RUNS):
        beta.run("rm", "-r", f"{SITE}/sklearn", check=True)
        beta.run(
            "sh",
            "-ec",
            f"sed -i 's/^Version: .*/Version: 0.0.1/' {SITE}/torch-*.dist-info/METADATA",
            check=True,
        )
        words = ["experiments/iris_parquet.yaml", "--name", "refused"]
        done = cluster.head.run(*cluster.hookyard("run", *words), **cluster.options())
    assert done.returncode == 2, done.stderr
    errors = [
        line.removeprefix("error: ").strip()
        for line in done.stderr.splitlines()
        if "error: " in line
    ]
    assert len(errors) == 3, done.stderr
    assert re.search(
        r"error: beta \(10\.77\.0\.12\): has torch 0\.0\.1, the driver 2\.", done.stderr
    )
    assert re.search(
        r"error: beta \(10\.77\.0\.12\): cannot import the experiment: .* No module named 'sklearn'",
        done.stderr,
    )
    assert f"error: gamma (10.77.0.13): cannot read and write storage {RUNS}: " in done.stderr
    assert "Read-only file system" in done.stderr
    assert "Nothing was started" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted((cluster.folder / "runs").iterdir()) == kept


@pytest.fixture
def tunnel(cluster: Cluster) -> Iterator[str]:
    """The dashboard of the head, which listens on its loopback alone, as the operator's machine
    sees it."""
    # It asks for a terminal, and goes on until Ctrl-C.
    command = shlex.join([str(BIN / "ray"), "dashboard", str(cluster.config)])
    dashboard = cluster.hosts.operator.start(
        "script", "-qec", command, "/dev/null", stdin=subprocess.PIPE, env=cluster.environment
    )
    cluster.hosts.operator.run(
        "bash",
        "-c",
        "until (: < /dev/tcp/127.0.0.1/8265) 2> /dev/null; do sleep 0.1; done",
        check=True,
    )
    yield "http://127.0.0.1:8265"
    with contextlib.suppress(subprocess.TimeoutExpired):
        dashboard.communicate("\x03", timeout=20)


def operate(
    cluster: Cluster, *words: str, address: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A `hookyard` command on the operator's machine, which is no part of the cluster."""
    options = {**cluster.options(), "env": {**cluster.environment, **environment}}
    return cluster.hosts.operator.run(
        str(BIN / "hookyard"), *words, "--address", address, **options
    )


def test_a_job_is_submitted_from_a_machine_that_is_no_part_of_the_cluster(
    cluster: Cluster, tunnel: str
) -> None:
    words = ["submit", *DIGITS, *SHORT, "--name", "job", "--storage", str(RUNS)]
    wrong = operate(cluster, *words, address=tunnel, RAY_AUTH_TOKEN="0" * 64)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert f"the cluster at {tunnel} needs its token" in wrong.stderr
    nobody = operate(cluster, *words, address="http://127.0.0.1:8266")
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert "no cluster answers at http://127.0.0.1:8266" in nobody.stderr
    assert not (cluster.folder / "runs/job").exists()

    sent = operate(cluster, *words, "--detach", address=tunnel)
    assert sent.returncode == 0, sent.stderr
    job = sent.stdout.strip()
    followed = operate(cluster, "logs", job, "--follow", address=tunnel)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert open_run(str(cluster.folder / "runs/job")).status == "finished"
    assert operate(cluster, "status", job, address=tunnel).stdout.startswith(
        f"{job}: SUCCEEDED, exit code 0"
    )


def test_run_continues_when_its_unreachable_host_is_back(
    cluster: Cluster, undisturbed: Any
) -> None:
    victim, run, told = disturbed(cluster, "cut", cluster.hosts.cut, cluster.hosts.mend)
    rows, reference = (one.stats.set_index(KEY).sort_index() for one in (run, undisturbed))
    assert rows.index.equals(reference.index)
    before = rows["attempt"] == 0
    assert 0 < before.sum() < len(rows)
    assert rows["loss"][before].equals(reference["loss"][before])
    # DDP's buckets decide in which order three gradients are added, and a new group has other
    # buckets for a step.
    np.testing.assert_allclose(rows["loss"], reference["loss"], rtol=1e-2, atol=1e-3)
    checkpoint = run.folder.read_attempts()[1].checkpoint
    assert re.fullmatch(
        f"Rank [012] on {victim} failed: the process died without an error message: .*", told[0]
    )
    assert re.fullmatch(f"Resumed from {checkpoint} with 3 ranks on .*{victim}.*", told[1])


def test_run_leaves_a_drained_host_and_makes_each_step_once(cluster: Cluster) -> None:
    cluster.wait_for(*NAMES)
    # Ray is asked for drained nodes every two seconds, in which twelve epochs can pass.
    overrides = ["workers.count=2", "epochs=60"]
    victim, run, told = disturbed(cluster, "drained", cluster.prepare_drain(), overrides=overrides)
    first, second = run.folder.read_attempts()
    step = re.fullmatch(r"Preempted after step (\d+)", told[0])
    assert step is not None
    assert int(step[1]) == second.position.step
    assert (first.world_size, second.world_size) == (2, 2)
    assert victim in {host.node for host in first.hosts}
    assert victim not in {host.node for host in second.hosts}
    trained = run.stats.query("phase == 'train'")
    for rank in (0, 1):
        steps = sorted(trained[trained["rank"] == rank]["step"])
        assert steps == list(
            range(1, 60 * 11 + 1)
        )  # 1400 samples, 700 for each rank, in batches of 64
    cluster.restart(victim)


def test_elastic_run_continues_without_a_dead_host(cluster: Cluster) -> None:
    cluster.wait_for(*NAMES)
    victim, run, told = disturbed(
        cluster, "dead", lambda name: cluster.hosts[name].kill(), overrides=["workers.count=[2, 3]"]
    )
    left = [name for name in NAMES if name != victim]
    attempts = run.folder.read_attempts()
    first, second = (attempt.world_size for attempt in attempts)
    assert first in (2, 3)  # a host that has just been restarted may come too late
    assert second == 2
    assert sorted(host.node for host in attempts[1].hosts) == left
    assert told[0].startswith("Rank ")
    assert re.fullmatch(f"Resumed from {attempts[1].checkpoint} with 2 ranks on .*", told[1])
    # 397 samples to validate, each once; 1400 to train on, and three ranks repeat one to have as
    # many each.
    samples = run.stats.groupby(["phase", "epoch"], observed=True)["batch_size"].sum().unstack()
    assert (samples.loc["val"] == 397).all()
    assert set(samples.loc["train"]) <= {1401, 1400}
    assert samples.shape == (2, 12)


def disturbed(
    cluster: Cluster,
    name: str,
    disturb: Callable[[str], None],
    mend: Callable[[str], None] = lambda host: None,
    overrides: list[str] | None = None,
) -> tuple[str, Any, list[str]]:
    """A run during which something happens to a host with a rank, not the head, and may be mended
    once the run has missed it.

    Returns the host, the run, and the lines in which its log tells of attempts.
    """
    words = cluster.hookyard("run", *DIGITS, *LONG, *(overrides or []), "--name", name)
    driver = cluster.head.start(*words, **cluster.options())
    assert driver.stdout is not None
    folder = cluster.folder / "runs" / name
    while not list(folder.glob("checkpoints/*/manifest.json")):
        assert driver.poll() is None, driver.stdout.read()
        time.sleep(0.02)
    (first,) = RunFolder(str(folder)).read_attempts()
    victim = max({host.node for host in first.hosts} - {HEAD})
    disturb(victim)
    said = []
    for line in driver.stdout:
        said.append(line)
        if line.startswith("Rank ") and " failed: " in line:
            mend(victim)
    assert driver.wait() == 0, "".join(said)
    driver.stdout.close()
    run = open_run(str(folder))
    assert run.status == "finished"
    assert not run.stats.duplicated(KEY).any()
    log = Path(folder / "log.txt").read_text()
    told = re.findall(
        r"^\S+ ((?:Rank \d .* failed: |Resumed|Started|Preempted).*)$", log, re.MULTILINE
    )
    assert len(told) == 2, log
    return victim, run, told
