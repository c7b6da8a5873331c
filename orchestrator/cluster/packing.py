"""Packing: which files of a working folder go to a cluster, and the archive of them. Driver; needs git, as it reads
.gitignore."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UsageError

LIMIT_BYTES = 100 * 2**20
"""Code is smaller than this; what is larger is data, and belongs where the cluster can read it."""

_AT_THE_TOP = ("runs", "checkpoints")
_SIGNS = {"run.json", "manifest.json", "pyvenv.cfg"}
"""Files by which a folder is known as a run or a sweep, a checkpoint, or a Python environment."""


@dataclass(frozen=True)
class Pack:
    """The files to send, by their paths in the folder."""

    folder: Path
    sizes_bytes: dict[str, int]
    left_out: tuple[str, ...] = ()
    """The folders that stay: runs, checkpoints and environments."""

    @property
    def total_bytes(self) -> int:
        """All files together, before they are compressed."""
        return sum(self.sizes_bytes.values())

    def biggest(self, count: int = 5) -> list[str]:
        """The largest files with their sizes, largest first."""
        largest = sorted(self.sizes_bytes.items(), key=lambda item: (-item[1], item[0]))[:count]
        return [f"{_mib(size)}  {name}" for name, size in largest]

    def __str__(self) -> str:
        return f"{len(self.sizes_bytes)} files, {_mib(self.total_bytes)}"

    def refuse_if_large(self) -> None:
        """Raises UsageError with the largest files where it is more than code."""
        if self.total_bytes > LIMIT_BYTES:
            raise UsageError(
                f"{self.folder} holds {self}, and at most {_mib(LIMIT_BYTES)} are sent to a cluster. The largest:\n  "
                + "\n  ".join(self.biggest(10))
                + "\nName in .gitignore what is no code, and put data where every node can read it."
            )

    def write(self, archive: Path) -> None:
        """Writes a zip file; the same files make the same bytes, so that a cluster knows what it has already."""
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in self.sizes_bytes:
                entry = zipfile.ZipInfo(name)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (self.folder / name).stat().st_mode << 16
                zipped.writestr(entry, (self.folder / name).read_bytes())


def pack(folder: Path) -> Pack:
    """The files of a folder that git does not ignore, without runs, checkpoints and environments.

    The folder need not be a repository: its .gitignore counts all the same. Raises UsageError where git is missing.
    """
    names = [name for name in _not_ignored(folder) if (folder / name).is_file() and not name.startswith(".git/")]
    signed = (Path(name).parent.as_posix() for name in names if Path(name).name in _SIGNS)
    no_code = dict.fromkeys([*_AT_THE_TOP, *signed])
    left_out = [out for out in no_code if any(name.startswith(f"{out}/") for name in names)]
    kept = [name for name in names if not any(name.startswith(f"{out}/") for out in left_out)]
    return Pack(folder, {name: (folder / name).stat().st_size for name in sorted(kept)}, tuple(left_out))


def _not_ignored(folder: Path) -> list[str]:
    asked = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if _git(["-C", str(folder), "rev-parse", "--git-dir"]).returncode == 0:
        listed = _git(["-C", str(folder), *asked])
    else:
        with tempfile.TemporaryDirectory() as elsewhere:
            _git(["init", "--quiet", "--bare", elsewhere])
            listed = _git(["--git-dir", elsewhere, "--work-tree", str(folder), "-C", str(folder), *asked])
    if listed.returncode:
        raise UsageError(f"git cannot list the files of {folder}: {listed.stderr.strip()}")
    return [name for name in dict.fromkeys(listed.stdout.split("\0")) if name]


def _git(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed; it is asked which files .gitignore leaves out") from None


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
