"""Files that hooks write; on an object store, uploaded from a temporary folder."""

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import raising_storage_errors
from orchestrator.storage.json_files import format_file, read_json
from orchestrator.storage.validation import validate

_LISTS = ".artifacts"
"""Folder with one list of files per rank, which a resume downloads."""


@dataclass(frozen=True)
class _ListEntries:
    """Entries of a list."""

    files: list[Any]


class Artifacts:
    """The files that one rank's hooks write, in the folder of a run on a disk, where nothing need be
    transferred. Used in workers.

    Attributes:
        folder: Where hooks write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with raising_storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def fetch(self) -> None:
        """Make the files of earlier attempts available, so that hooks can append to them."""

    def send(self) -> None:
        """Make new, changed and removed files known to other processes."""

    def close(self) -> None:
        """End the use of the folder."""


class UploadedArtifacts(Artifacts):
    """The files that one rank's hooks write into a temporary folder, for a run on an object store.

    With fewer ranks than before, each rank also fetches the files of some missing ranks. `close` or
    the end of the process removes the folder.
    """

    def __init__(self, run: Storage, rank: int, world_size: int) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="hookyard-hooks-")))
        self._run = run
        self._rank = rank
        self._world_size = world_size
        self._remove = finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of each file when it was uploaded or downloaded."""
        self._listed: set[str] = set()
        """Files in the stored list of this rank."""

    def fetch(self) -> None:
        """Download the files of earlier attempts."""
        names = self._run.names(_LISTS)
        lists = [name for name in names if _parse_rank(name) % self._world_size == self._rank]
        self._listed = set().union(*self._run.map(self._read_list, lists))
        self._run.map(self._download, sorted(self._listed))
        states = self._stat_files()
        self._sent = {name: state for name, state in states.items() if name in self._listed}

    def send(self) -> None:
        """Upload new and changed files, and delete removed ones; raises StorageError."""
        states = self._stat_files()
        changed = [name for name, state in states.items() if self._sent.get(name) != state]
        # Write the list first: it must name every uploaded file.
        if self._listed != {*states}:
            text = format_file({"files": sorted(states)}, None)
            self._run.write(f"{_LISTS}/rank-{self._rank:04d}.json", text)
            self._listed = {*states}
        self._run.map(self._upload, changed)
        self._run.map(self._run.delete, [name for name in self._sent if name not in states])
        self._sent = states

    def close(self) -> None:
        self._remove()

    def _stat_files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file in the folder."""
        states = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    status = path.stat()
                    name = path.relative_to(self.folder).as_posix()
                    states[name] = (status.st_size, status.st_mtime_ns)
        return states

    def _read_list(self, name: str) -> Iterable[str]:
        advice = "Files of its hooks are not downloaded."
        try:
            entries = read_json(self._run, f"{_LISTS}/{name}", _check_list, advice)
        except (FileNotFoundError, DamagedFile):
            return []
        return [file for file in entries.files if isinstance(file, str) and self._is_inside(file)]

    def _is_inside(self, file: str) -> bool:
        """Return whether a path leads to a file in the folder."""
        return (self.folder / file).resolve().is_relative_to(self.folder.resolve())

    def _download(self, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            suppress(FileNotFoundError),
            self._run.open_copy(name) as content,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(content, file)

    def _upload(self, name: str) -> None:
        with (
            suppress(FileNotFoundError),
            (self.folder / name).open("rb") as file,
            self._run.create(name) as copy,
        ):
            shutil.copyfileobj(file, copy)


def open_artifacts(run: Storage, rank: int = 0, world_size: int = 1) -> Artifacts:
    """Return the files that the hooks of a rank write for a run.

    Args:
        run: The run's folder.
        rank: The rank.
        world_size: Number of ranks.
    """
    if run.local is not None:
        return Artifacts(run.local)
    return UploadedArtifacts(run, rank, world_size)


def _check_list(entries: Any) -> _ListEntries:
    return validate(entries, _ListEntries)


def _parse_rank(name: str) -> int:
    number = name.removeprefix("rank-").removesuffix(".json")
    return int(number) if number.isdecimal() else 0
