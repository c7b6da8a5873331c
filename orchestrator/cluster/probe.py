"""The probe: what one machine says of itself before a run. Imports no ray; runs as an actor on each node, and in the
driver."""

from __future__ import annotations

import hashlib
import platform
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import HookyardError
from orchestrator.records.provenance import installed_version
from orchestrator.storage import Storage

if TYPE_CHECKING:
    from orchestrator.config.text.source import ExperimentSource

CONNECT_S = 5.0
"""How long a node may take to accept a connection of another one."""


@dataclass(frozen=True)
class Facts:
    """What a machine has, and which versions of what."""

    versions: dict[str, str]
    """Of python, torch and ray, and `project`: Hookyard's version and a hash of its code."""
    gpus: int
    disk_free_bytes: int
    """Where temporary files lie."""
    shared_memory_free_bytes: int | None
    """None where there is no /dev/shm."""


class Probe:
    """Looks at the machine it runs on; each method answers one question, with None where all is well."""

    def facts(self) -> Facts:
        """What this machine has."""
        shared = Path("/dev/shm")
        return Facts(
            {
                "python": platform.python_version(),
                **{name: installed_version(name) or "none" for name in ("torch", "ray")},
                "project": _project(),
            },
            len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            shutil.disk_usage(tempfile.gettempdir()).free,
            shutil.disk_usage(shared).free if shared.exists() else None,
        )

    def clock(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def wrong_with_imports(self, source: ExperimentSource, packages: tuple[str, ...]) -> str | None:
        """Why the experiment's task and hooks, or the packages that they need, cannot be imported here."""
        from orchestrator.cluster.packages import missing_packages
        from orchestrator.config.resolve import resolve

        try:
            resolve(source)
        except HookyardError as error:
            return str(error)
        missing = missing_packages(packages)
        return f"it needs {', '.join(missing)}, not installed there" if missing else None

    def wrong_with_gpus(self) -> str | None:
        """Why torch cannot use the GPUs of this machine."""
        import torch

        return None if torch.cuda.is_available() else f"torch {torch.__version__} sees none of them"

    def wrong_with_storage(self, location: str, folder: str, node: str) -> str | None:
        """Why the driver's mark cannot be read here, or one of this node's own be left beside it."""
        try:
            storage = Storage(location)
            storage.reach()
            if storage.read(f"{folder}/driver") != b"driver":
                return "the driver's mark says something else here"
            storage.write(f"{folder}/{node}", node)
        except FileNotFoundError:
            return "the driver's mark is not there: this node has another folder of that name"
        except (HookyardError, OSError) as error:
            return str(error)
        return None

    def listen(self) -> int:
        """Takes one connection at a free port, as a process group does, and returns the port."""
        listener = socket.create_server(("", 0))

        def accept() -> None:
            with listener:
                listener.settimeout(4 * CONNECT_S)
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    def wrong_with_connecting(self, host: str, port: int) -> str | None:
        """Why another node cannot be connected to from here."""
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except OSError as error:
            return str(error)
        return None


def _project() -> str:
    code = hashlib.sha256()
    for package in ("hooks", "orchestrator"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(next(iter(spec.submodule_search_locations)))
        for file in sorted(root.rglob("*.py")):
            code.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return f"{installed_version('hookyard')}+{code.hexdigest()[:8]}"
