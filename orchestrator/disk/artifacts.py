"""Files that hooks write; on an object store, uploaded from a temporary folder."""

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import raising_storage_errors
from orchestrator.storage.json_files import format_file, read_json
from orchestrator.storage.validation import check_mapping

_LISTS = ".artifacts"
"""Folder with one list of files per rank, which a resume downloads."""


class Artifacts:
    """The files that one rank's hooks write. Used in workers.

    For a run on a disk, `folder` is its folder. Otherwise `folder` is temporary: `fetch` downloads
    the files that the rank wrote in earlier attempts, so hooks can append to them; `send` uploads
    changes. With fewer ranks than before, each rank also downloads the files of some missing ranks.
    `close` or the end of the process removes the folder.
    """

    def __init__(self, run: Storage, rank: int = 0, world_size: int = 1) -> None:
        self._run = run
        self._rank = rank
        self._world_size = world_size
        self.folder = run.local or Path(tempfile.mkdtemp(prefix="hookyard-hooks-"))
        if not run.local:
            self._remove = finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        with raising_storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._sent: dict[str, tuple[int, int]] = {}
        self._listed: set[str] = set()

    def fetch(self) -> None:
        """Download the files of earlier attempts."""
        if self._run.local:
            return
        names = self._run.names(_LISTS)
        lists = [name for name in names if _parse_rank(name) % self._world_size == self._rank]
        self._listed = set().union(*self._run.map(self._read_list, lists))
        self._run.map(self._download, sorted(self._listed))
        states = self._stat_files()
        self._sent = {name: state for name, state in states.items() if name in self._listed}

    def send(self) -> None:
        """Upload new and changed files, and delete removed ones; raises StorageError."""
        if self._run.local:
            return
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
        if not self._run.local:
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
            files = read_json(self._run, f"{_LISTS}/{name}", check_mapping, advice)["files"]
        except (FileNotFoundError, DamagedFile, KeyError):
            return []
        return [file for file in files if isinstance(file, str) and self._is_inside(file)]

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


def _parse_rank(name: str) -> int:
    number = name.removeprefix("rank-").removesuffix(".json")
    return int(number) if number.isdecimal() else 0
