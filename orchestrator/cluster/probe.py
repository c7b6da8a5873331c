"""Checks of the current machine, for the driver and as a Ray task on each node. Does not import ray."""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import HookyardError
from orchestrator.records.provenance import installed_version
from orchestrator.storage import Storage

if TYPE_CHECKING:
    from orchestrator.config.text.source import ExperimentSource


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


@dataclass(frozen=True)
class Answers:
    """Facts about a machine, and the problem that each check found, or None."""

    facts: Facts
    storage: str | None = None
    imports: str | None = None
    gpus: str | None = None


def probe_node(
    location: str, folder: str, node: str, source: ExperimentSource | None = None, needs_gpus: bool = False
) -> Answers:
    """Check this machine: the storage at a location, and what an experiment needs."""
    facts, gpus = collect_facts(), None
    if needs_gpus and facts.gpus:
        import torch

        gpus = None if torch.cuda.is_available() else f"torch {torch.__version__} sees none of them"
    return Answers(
        facts,
        storage=_check_storage(location, folder, node),
        imports=_check_imports(source) if source else None,
        gpus=gpus,
    )


def collect_facts() -> Facts:
    shared = Path("/dev/shm")
    return Facts(
        {
            "python": platform.python_version(),
            **{name: installed_version(name) or "none" for name in ("torch", "ray")},
            "project": _read_project_version(),
        },
        len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        shutil.disk_usage(tempfile.gettempdir()).free,
        shutil.disk_usage(shared).free if shared.exists() else None,
    )


def _check_storage(location: str, folder: str, node: str) -> str | None:
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


def _check_imports(source: ExperimentSource) -> str | None:
    """Import and build the experiment's task and hooks."""
    from orchestrator.config.resolve import resolve

    try:
        resolve(source)
    except HookyardError as error:
        return str(error)
    return None


def _read_project_version() -> str:
    code = hashlib.sha256()
    for package in ("hooks", "orchestrator"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(next(iter(spec.submodule_search_locations)))
        for file in sorted(root.rglob("*.py")):
            code.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return f"{installed_version('hookyard')}+{code.hexdigest()[:8]}"
