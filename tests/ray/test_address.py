"""Sending a job to a cluster that `ray start` began; which Ray is joined."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import open_run

pytestmark = pytest.mark.ray


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster's dashboard, and the environment that knows its token."""
    # Ray's sockets lie in its folder, and their paths may have 107 characters.
    folder = tmp_path_factory.mktemp("r", numbered=True)
    short = Path(f"/tmp/hy-{os.getpid()}")
    short.symlink_to(folder)
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # A job's python is looked for on the path that its cluster was started with.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    # Nobody is left to wait for when the test is over.
    environment |= {
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_raylet_start_wait_time_s": "120",
    }
    command = ["start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    dashboard = free_port()
    ray = Path(sys.executable).with_name("ray")
    head = subprocess.Popen(
        [
            *(str(ray), *command, f"--port={free_port()}", f"--temp-dir={short}"),
            *("--include-dashboard=true", f"--dashboard-port={dashboard}"),
            # Its default is one for the machine, and jobs wait for ever where another Ray has it.
            f"--dashboard-agent-listen-port={free_port()}",
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert head.stdout is not None
    talk = []
    for line in head.stdout:
        talk.append(line)
        if "Ray runtime started" in line:
            break
    else:
        pytest.fail("".join(talk))
    yield f"http://127.0.0.1:{dashboard}", environment
    head.terminate()
    head.stdout.close()
    head.wait(timeout=60)
    short.unlink()


def hookyard(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_submit_runs_a_job_on_a_started_cluster(
    outside: Path, started: tuple[str, dict[str, str]]
) -> None:
    dashboard, environment = started
    storage = str(outside / "runs")
    words = [
        "submit",
        "points.yaml",
        "epochs=1",
        "workers.count=1",
        "--storage",
        storage,
        "--address",
        dashboard,
    ]
    job = hookyard(*words, **environment)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "preflight: 1 node passed" in job.stdout
    run = open_run("runs/points")
    assert run.status == "finished"
    assert len(run.stats) == 10 + 6
    wrong = hookyard(*words, **{**environment, "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    assert wrong.returncode == 2
    assert f"the cluster at {dashboard} needs its token" in wrong.stderr
    assert wrong.stdout == ""
