"""Joining a cluster that `ray start` began."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import open_run
from orchestrator.runs.environment import chosen_address

pytestmark = pytest.mark.ray


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster's address, and the environment that knows its token."""
    # Ray's sockets lie in its folder, and their paths may have 107 characters.
    folder = tmp_path_factory.mktemp("r", numbered=True)
    short = Path(f"/tmp/hy-{os.getpid()}")
    short.symlink_to(folder)
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    # Nobody is left to wait for when the test is over.
    environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
    address = f"127.0.0.1:{free_port()}"
    command = ["start", "--head", "--block", "--num-cpus=2", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    ray = Path(sys.executable).with_name("ray")
    port = address.rsplit(":", 1)[1]
    head = subprocess.Popen(
        [str(ray), *command, f"--port={port}", f"--temp-dir={short}"],
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
    yield address, environment
    head.terminate()
    head.stdout.close()
    head.wait(timeout=60)
    short.unlink()


def test_a_run_joins_a_cluster_that_ray_start_began(outside: Path, started: tuple[str, dict[str, str]]) -> None:
    address, environment = started
    command = [sys.executable, "-m", "orchestrator", "run", "points.yaml", "epochs=1", "--address", address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"joining Ray at {address}" in done.stderr
    assert "preflight: 1 node is fit" in done.stderr
    run = open_run("runs/points")
    assert run.status == "finished"
    assert sorted(run.stats["rank"].unique()) == [0, 1]


def test_the_flag_comes_before_the_variable_and_the_variable_before_ray_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert chosen_address("10.0.0.2:6379") == "10.0.0.2:6379"
    assert chosen_address(None) == "10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    assert chosen_address(None) is None
