"""Checks that one machine makes of itself: in the driver, and as a Ray actor on each node. Imports no ray."""

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
"""Time limit for a connection between two nodes."""


@dataclass(frozen=True)
class Facts:
    """Versions and resources of a machine."""

    versions: dict[str, str]
    """Versions of python, torch and ray, and as `project` Hookyard's version with a hash of its code."""
    gpus: int
    disk_free_bytes: int
    """Free bytes for temporary files."""
    shared_memory_free_bytes: int | None
    """None without /dev/shm."""


class Probe:
    """Checks of the machine it runs on. A check returns what is wrong, or None."""

    def facts(self) -> Facts:
        """Return the machine's versions and resources."""
        shared = Path("/dev/shm")
        return Facts(
            {
                "python": platform.python_version(),
                **{name: installed_version(name) or "none" for name in ("torch", "ray")},
                "project": _project_version(),
            },
            len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            shutil.disk_usage(tempfile.gettempdir()).free,
            shutil.disk_usage(shared).free if shared.exists() else None,
        )

    def clock(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time()

    def check_imports(self, source: ExperimentSource) -> str | None:
        """Import and build the experiment's task and hooks."""
        from orchestrator.config.resolve import resolve

        try:
            resolve(source)
        except HookyardError as error:
            return str(error)
        return None

    def check_gpus(self) -> str | None:
        """Check that torch can use the machine's GPUs."""
        import torch

        return None if torch.cuda.is_available() else f"torch {torch.__version__} sees none of them"

    def check_storage(self, location: str, folder: str, node: str) -> str | None:
        """Read the driver's file in the storage, and write one beside it."""
        try:
            storage = Storage(location)
            storage.reach()
            if storage.read(f"{folder}/driver") != b"driver":
                return "the driver's file has other content here"
            storage.write(f"{folder}/{node}", node)
        except FileNotFoundError:
            return "the driver's file is not there: this node has another folder of that name"
        except (HookyardError, OSError) as error:
            return str(error)
        return None

    def listen(self) -> int:
        """Accept one connection at a free port, and return the port."""
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

    def check_connection(self, host: str, port: int) -> str | None:
        """Connect to another node."""
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except OSError as error:
            return str(error)
        return None


def _project_version() -> str:
    code = hashlib.sha256()
    for package in ("hooks", "orchestrator"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(next(iter(spec.submodule_search_locations)))
        for file in sorted(root.rglob("*.py")):
            code.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return f"{installed_version('hookyard')}+{code.hexdigest()[:8]}"
