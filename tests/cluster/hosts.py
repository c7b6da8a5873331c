"""Several hosts on this machine: each with processes, a network address, a name, a /tmp and an sshd
of its own.

A host is a set of Linux namespaces. They share the disk, as machines with one image do, and a
folder, as by NFS; what they write to /tmp and to root's home is their own. All are gone when their
first process is.
"""

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real_systems import explain_missing

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv/bin"
SHARED = Path("/mnt/shared")
"""Where every host sees the folder they share."""
_NETWORK = "10.77.0"

_BOOT = r"""
set -e
hostname {name}
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/shared /mnt/tmp /mnt/home
mount --bind {shared} /mnt/shared
mount -t tmpfs tmpfs /mnt/home && mkdir /mnt/home/upper /mnt/home/work
mount -t overlay overlay -o lowerdir=/root,upperdir=/mnt/home/upper,workdir=/mnt/home/work /root
rm -rf /root/.ray /root/.ssh
mount -t tmpfs tmpfs /mnt/tmp
case {root} in /tmp/*) mkdir -p /mnt{root} && mount --bind {root} /mnt{root} ;; esac
mount --rbind /mnt/tmp /tmp
mount -t tmpfs tmpfs /run && mkdir /run/sshd
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount --bind {shared}/hosts /etc/hosts 2>/dev/null || mount --bind /mnt/shared/hosts /etc/hosts
ip link set lo up
touch /mnt/shared/{name}.up
while :; do sleep 1; done
"""


def why_not() -> str:
    """Why there can be no hosts here; empty where there can."""
    programs = ("ip", "sshd", "ssh", "ssh-keygen", "rsync", "unshare", "nsenter")
    packages = "iproute2 openssh-server openssh-client rsync util-linux"
    if reason := explain_missing("the test hosts", programs, packages):
        return reason
    made = subprocess.run(
        [
            "unshare",
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            "/mnt",
        ],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        return f"the test hosts are namespaces, which cannot be made here: {made.stderr.strip()}"
    return ""


@dataclass
class Host:
    """One of the hosts, or the operator's own machine."""

    name: str
    address: str
    pid: int
    """Its first process; all of its others end with it."""

    def command(
        self, *words: str, cwd: str = "/", namespaces: str = "--mount --net --uts --ipc --pid"
    ) -> list[str]:
        """A command line that runs on this host, in a folder as this host sees it."""
        return [
            "nsenter",
            f"--target={self.pid}",
            *namespaces.split(),
            "--",
            "env",
            f"--chdir={cwd}",
            *words,
        ]

    def run(self, *words: str, cwd: str = "/", **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on this host, and waits for it."""
        options = {"capture_output": True, "text": True, "timeout": 300, **options}
        return subprocess.run(self.command(*words, cwd=cwd), **options)

    def start(self, *words: str, cwd: str = "/", **options: Any) -> subprocess.Popen[str]:
        """Begins a command on this host."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
        return subprocess.Popen(self.command(*words, cwd=cwd), **options)

    @contextlib.contextmanager
    def own(self, folder: Path) -> Iterator[None]:
        """As long as the context lasts, what is changed in a folder is changed on this host
        alone."""
        script = (
            "mkdir -p /mnt/own/upper /mnt/own/work; mount -t overlay overlay -o"
            " lowerdir=$0,upperdir=/mnt/own/upper,workdir=/mnt/own/work $0"
        )
        self.run("sh", "-ec", script, str(folder), check=True)
        try:
            yield
        finally:
            self.run("sh", "-ec", "umount --lazy $0; rm -r /mnt/own", str(folder), check=True)

    @contextlib.contextmanager
    def read_only(self, folder: Path) -> Iterator[None]:
        """As long as the context lasts, this host can only read a folder."""
        self.run(
            "sh", "-ec", "mount --bind $0 $0; mount -o remount,bind,ro $0", str(folder), check=True
        )
        try:
            yield
        finally:
            self.run("umount", "--lazy", str(folder), check=True)

    def kill(self) -> None:
        """As when it is switched off: its processes end, and their connections with them."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Hosts:
    """Hosts beside each other on one network, and the operator's machine with a key to them."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.folder = folder
        addresses = {name: f"{_NETWORK}.{10 + number}" for number, name in enumerate(names, 1)}
        self._write_keys(addresses)
        self.operator = self._boot("operator", f"{_NETWORK}.1")
        self._ip("link", "add", "hosts", "type", "bridge")
        self._ip("addr", "add", f"{_NETWORK}.1/24", "dev", "hosts")
        self._ip("link", "set", "hosts", "up")
        self.hosts = {
            name: self._connect(self._boot(name, address)) for name, address in addresses.items()
        }
        for host in self.hosts.values():
            self._start_sshd(host)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cut(self, name: str) -> None:
        """Pulls the host's network cable."""
        self._ip("link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """Puts the cable back."""
        self._ip("link", "set", f"to-{name}", "up")

    def close(self) -> None:
        """Ends all hosts and what runs on them."""
        for host in (*self.hosts.values(), self.operator):
            host.kill()

    def _write_keys(self, addresses: dict[str, str]) -> None:
        lines = [
            "127.0.0.1 localhost",
            f"{_NETWORK}.1 operator",
            *(f"{address} {name}" for name, address in addresses.items()),
        ]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        for name in ("host_key", "key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)],
                check=True,
            )

    def _boot(self, name: str, address: str) -> Host:
        script = textwrap.dedent(_BOOT).format(name=name, shared=self.folder, root=ROOT)
        isolated = "unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc"
        command = [*isolated.split(), "sh", "-c", script]
        outer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not (self.folder / f"{name}.up").exists():
            if outer.poll() is not None:
                assert outer.stderr is not None
                raise RuntimeError(f"host {name} did not come up: {outer.stderr.read().strip()}")
            time.sleep(0.01)
        (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        return Host(name, address, int(child))

    def _connect(self, host: Host) -> Host:
        """Lays a cable from the operator's machine to the host."""
        self._ip(
            "link",
            "add",
            f"to-{host.name}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(host.pid),
        )
        self._ip("link", "set", f"to-{host.name}", "master", "hosts", "up")
        for words in (
            ["addr", "add", f"{host.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            host.run("ip", *words, check=True)
        return host

    def _ip(self, *words: str) -> None:
        # In the network of the operator, but among all processes: a cable's far end is given to one
        # by its id.
        subprocess.run(
            self.operator.command("ip", *words, namespaces="--net"),
            check=True,
            capture_output=True,
            text=True,
        )

    def _start_sshd(self, host: Host) -> None:
        options = {
            "HostKey": SHARED / "host_key",
            "AuthorizedKeysFile": SHARED / "key.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "PidFile": "none",
            "PrintMotd": "no",
        }
        host.run(
            "/usr/sbin/sshd",
            "-f",
            "/dev/null",
            *(f"-o{name}={value}" for name, value in options.items()),
            check=True,
        )


@contextlib.contextmanager
def hosts(names: Sequence[str], folder: Path) -> Iterator[Hosts]:
    """The hosts of these names, as long as the context lasts."""
    made = Hosts(names, folder)
    try:
        yield made
    finally:
        made.close()
