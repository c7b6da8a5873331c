"""Checks of one machine, in the driver and as a Ray task on each node."""

import hashlib
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import hooks
from orchestrator.disk.provenance import find_version
from orchestrator.errors import HookyardError
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage

_PACKAGES = (Path(hooks.__file__).parent, Path(__file__).parents[1])
"""Folders of the project's code."""


@dataclass(frozen=True)
class Facts:
    """Versions and resources of a machine."""

    versions: dict[str, str]
    """Versions of python, torch and ray, and as `project` Hookyard's version with a hash of its
    code."""
    gpus: int
    disk_free_bytes: int
    """Free bytes for temporary files."""
    shared_memory_free_bytes: int | None
    """None without /dev/shm."""


@dataclass(frozen=True)
class NodeAnswers:
    """Facts about a machine, and the problem that each check found, or None."""

    facts: Facts
    storage: str | None = None
    imports: str | None = None
    gpus: str | None = None


def probe_node(
    location: str,
    folder: str,
    node: str,
    source: ExperimentSource | None = None,
    needs_gpus: bool = False,
) -> NodeAnswers:
    """Check this machine: the storage at a location, and what an experiment needs."""
    facts = collect_facts()
    return NodeAnswers(
        facts,
        storage=_find_storage_problem(location, folder, node),
        imports=_find_import_problem(source) if source else None,
        gpus=_find_gpu_problem() if needs_gpus and facts.gpus else None,
    )


def collect_facts() -> Facts:
    """Collect the facts about this machine."""
    shared = Path("/dev/shm")
    versions = {
        "python": platform.python_version(),
        "torch": find_version("torch") or "none",
        "ray": find_version("ray") or "none",
        "project": _read_project_version(),
    }
    return Facts(
        versions,
        gpus=len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        disk_free_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        shared_memory_free_bytes=shutil.disk_usage(shared).free if shared.exists() else None,
    )


def _find_gpu_problem() -> str | None:
    """Return why torch cannot use the GPUs of this machine; None if it can."""
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees none of them"


def _find_import_problem(source: ExperimentSource) -> str | None:
    """Return why the experiment cannot be built here; None if it can."""
    from orchestrator.experiment.resolve import resolve

    try:
        resolve(source)
    except HookyardError as error:
        return str(error)
    return None


def _find_storage_problem(location: str, folder: str, node: str) -> str | None:
    """Read the driver's file in the storage, and write one beside it; return what failed, or
    None."""
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


def _read_project_version() -> str:
    """Return Hookyard's version with a hash of its code."""
    code = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted(package.rglob("*.py")):
            code.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return f"{find_version('hookyard')}+{code.hexdigest()[:8]}"
