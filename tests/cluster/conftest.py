"""A Ray cluster of three hosts, begun by `ray up` over ssh; without the right to make hosts its tests are skipped."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import BIN, ROOT, SHARED, Host, Hosts, hosts, why_not

NAMES = ("alpha", "beta", "gamma")
HEAD = NAMES[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not() if here else ""
    for item in here:
        item.add_marker(pytest.mark.cluster)
        item.add_marker(pytest.mark.timeout(600))  # Ray takes a minute to miss a host
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Cluster:
    """The hosts, and Ray on them."""

    hosts: Hosts
    config: Path
    folder: Path
    """Where tests find what the hosts share."""
    environment: dict[str, str]

    @property
    def head(self) -> Host:
        return self.hosts[HEAD]

    def ray(self, *words: str) -> str:
        """A command of Ray's on the operator's machine; returns what it said."""
        done = self.hosts.operator.run(str(BIN / "ray"), *words, env=self.environment)
        assert done.returncode == 0, f"ray {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def hookyard(self, *words: str) -> list[str]:
        """The words of a `hookyard` command that joins the cluster and keeps its runs in the shared folder."""
        return [str(BIN / "hookyard"), *words, "--address", "auto", "--storage", str(SHARED / "runs")]

    def options(self) -> dict[str, Any]:
        """How a command of ours is started on the head: in the project's folder, with the cluster's token."""
        return {"env": self.environment, "cwd": str(ROOT)}

    def up(self) -> set[str]:
        """The hosts that Ray says are alive."""
        code = "import ray; ray.init(address='auto', log_to_driver=False); print(*[n['NodeManagerHostname'] for n in ray.nodes() if n['Alive']])"
        done = self.head.run(str(BIN / "python"), "-c", code, **self.options())
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines()[-1].split())

    def wait_for(self, *names: str) -> None:
        """Waits until exactly these hosts are up."""
        deadline = time.monotonic() + 240
        while (found := self.up()) != set(names):
            assert time.monotonic() < deadline, f"waited for {set(names)}, there are {found}"

    def wait_until_quiet(self) -> None:
        """Waits until Ray is on no host: `ray down` stops the head, and workers end when they have missed it for a minute."""
        deadline = time.monotonic() + 180
        while left := [host.name for host in self.hosts.hosts.values() if "raylet" in host.run("ps", "-eo", "comm").stdout]:
            assert time.monotonic() < deadline, f"`ray down` left Ray on {left}"
            time.sleep(1)


def onpremises() -> dict[str, Any]:
    """The file that ships, for these hosts: one CPU each, this checkout instead of a clone, a token in the shared folder."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "cluster-onprem.yaml").read_text())
    config["provider"] |= {"head_ip": HEAD, "worker_ips": list(NAMES[1:])}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(SHARED / "key")}
    config |= {"min_workers": 2, "max_workers": 2, "file_mounts": {}}
    shell = f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={SHARED}/token PATH={BIN}:$PATH"
    config["setup_commands"] = [f"grep -q RAY_AUTH_MODE ~/.bashrc || echo '{shell}' >> ~/.bashrc"]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        config[key] = [f"{shell}; {small(command.replace('~/venv/bin/', ''))}" for command in config[key]]
    return config


def small(command: str) -> str:
    """A host of one CPU and little memory."""
    return command.replace("ray start", "ray start --num-cpus=1 --object-store-memory=100000000 --disable-usage-stats")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hookyard-hosts-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        (folder / "cluster.yaml").write_text(yaml.safe_dump(onpremises()))
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(SHARED / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
        with hosts(NAMES, folder) as made:
            begun = Cluster(made, SHARED / "cluster.yaml", folder, environment)
            begun.ray("up", "--yes", str(begun.config))
            begun.wait_for(*NAMES)
            yield begun
            begun.ray("down", "--yes", str(begun.config))
            begun.wait_until_quiet()
