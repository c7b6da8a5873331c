"""A Ray cluster of three hosts, begun by `ray up` over ssh; without the right to make hosts its
tests are skipped."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import BIN, ROOT, SHARED, Host, Hosts, hosts, why_not
from tests.real_systems import mark_tests, wait_until

RUNS = SHARED / "runs"
NAMES = ("alpha", "beta", "gamma")
HEAD = NAMES[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_tests(items, Path(__file__).parent, "cluster", 600, why_not)


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
        """The words of a `hookyard` command that joins the cluster and keeps its runs in the shared
        folder."""
        return [str(BIN / "hookyard"), *words, "--address", f"{HEAD}:6379", "--storage", str(RUNS)]

    def options(self) -> dict[str, Any]:
        """How a command of ours is started on a host: in the project's folder, with the cluster's
        token."""
        return {"env": self.environment, "cwd": str(ROOT)}

    def wait_for(self, *names: str) -> None:
        """Waits until Ray says that exactly these hosts are up."""
        done = self.head.run(str(BIN / "python"), "-c", _WAIT, *names, **self.options())
        assert done.returncode == 0, done.stderr

    def prepare_drain(self) -> Callable[[str], None]:
        """Return a function that drains a host at once, as the provider of a spot machine does.

        Its process has joined Ray already: joining takes longer than a short run.
        """
        drainer = self.head.start(
            *(str(BIN / "python"), "-c", _DRAIN, f"{HEAD}:6379"),
            stdin=subprocess.PIPE,
            **self.options(),
        )
        assert drainer.stdout is not None
        assert "ready\n" in drainer.stdout

        def drain(name: str) -> None:
            output, _ = drainer.communicate(name, timeout=60)
            assert drainer.returncode == 0, output

        return drain

    def restart(self, name: str) -> None:
        """Stop Ray on a host and start it again, as the cluster's file says."""
        for command in yaml.safe_load((self.folder / "cluster.yaml").read_text())[
            "worker_start_ray_commands"
        ]:
            options = {**self.options(), "env": {**self.environment, "RAY_HEAD_IP": HEAD}}
            self.hosts[name].run("bash", "-c", command, **options)

    def wait_until_quiet(self) -> None:
        """Wait until Ray runs on no host: `ray down` stops the head, and workers end some time
        after it."""
        wait_until(lambda: not self._list_hosts_with_ray(), "`ray down` has ended Ray on each host")

    def _list_hosts_with_ray(self) -> list[str]:
        return [
            host.name
            for host in self.hosts.hosts.values()
            if "raylet" in host.run("ps", "-eo", "comm").stdout
        ]


_WAIT = """
import sys, time, ray
ray.init(address="auto", log_to_driver=False)
while {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]} != set(sys.argv[1:]):
    time.sleep(0.2)
"""

_DRAIN = """
import sys, time, ray
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION
(address,) = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
client = ray._raylet.GcsClient(address=address)
ids = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
print("ready", flush=True)
node = ids[sys.stdin.read()]
deadline_ms = int((time.time() + 300) * 1000)
accepted, why_not = client.drain_node(node, DRAIN_NODE_REASON_PREEMPTION, "a spot machine", deadline_ms)
sys.exit(0 if accepted else why_not)
"""

_SMALL = "--num-cpus=1 --object-store-memory=100000000 --disable-usage-stats"
"""A host of one CPU and little memory."""

_QUICK = {
    "RAY_health_check_initial_delay_ms": 1000,
    "RAY_health_check_period_ms": 1000,
    "RAY_health_check_timeout_ms": 5000,
    "RAY_health_check_failure_threshold": 3,
    "RAY_gcs_rpc_server_reconnect_timeout_s": 20,
    "AUTOSCALER_HEARTBEAT_TIMEOUT_S": 15,
}
"""A host is missed, and a head, after twenty seconds instead of the minute that Ray takes by
itself."""


def onpremises() -> dict[str, Any]:
    """The file that ships, for these hosts: with this checkout and its environment instead of a
    clone and a new one."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "cluster-onprem.yaml").read_text())
    config["provider"] |= {"head_ip": HEAD, "worker_ips": list(NAMES[1:])}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(SHARED / "key")}
    config |= {"min_workers": 2, "max_workers": 2}
    config["setup_commands"] = [here(config["setup_commands"][-1])]
    quick = "export " + " ".join(f"{name}={value}" for name, value in _QUICK.items())
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        config[key] = [
            f"{quick}; {here(command).replace('ray start', f'ray start {_SMALL}')}"
            for command in config[key]
        ]
    return config


def here(command: str) -> str:
    """A command of the file with the programs of this checkout."""
    return command.replace("~/venv/bin", str(BIN)).replace("$HOME/venv/bin", str(BIN))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hookyard-hosts-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "runs").mkdir()
        (folder / "cluster.yaml").write_text(yaml.safe_dump(onpremises()))
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        # Whatever HOME is here, on the hosts it is what sshd makes of it: root's, of which each has
        # one of its own.
        environment = own | {
            "HOME": "/root",
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with hosts(NAMES, folder) as made:
            begun = Cluster(made, SHARED / "cluster.yaml", folder, environment)
            begun.ray("get-auth-token", "--generate")
            begun.ray("up", "--yes", str(begun.config))
            begun.wait_for(*NAMES)
            yield begun
            begun.ray("down", "--yes", str(begun.config))
            begun.wait_until_quiet()
