"""What hooks write: into a folder of their rank's machine, where the run's storage is none, and carried there from
it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.storage import raising_storage_errors
from orchestrator.storage.stored_data import mapping, read_json, sealed

_LISTS = ".artifacts"
"""Where each rank says which files it would take up again."""
_SMALL_BYTES = 64 * 2**20


class Artifacts:
    """The files that one rank's hooks write. Worker process.

    In a run on a disk they are where they belong. Elsewhere `folder` is a temporary one, in which a resumed rank finds
    what it wrote before, so that hooks go on with files that they add to; `send` carries what has changed, and removes
    what is gone. A file over 64 MiB that was written once and left alone, as an export is, is not fetched again. What a
    rank wrote that is no more is another's.
    """

    def __init__(self, run: Storage, rank: int = 0, world_size: int = 1) -> None:
        self._run, self._rank, self._world_size = run, rank, world_size
        self.folder = run.local or Path(tempfile.mkdtemp(prefix="hookyard-"))
        with raising_storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._sent: dict[str, tuple[int, int]] = {}
        self._listed: set[str] = set()

    def fetch(self) -> None:
        """Takes up what there was when the run was left."""
        if self._run.local:
            return
        lists = [name for name in self._run.names(_LISTS) if _rank_of(name) % self._world_size == self._rank]
        self._listed = {file for files in self._run.each(self._files_in, lists) for file in files}
        self._run.each(self._fetch, sorted(self._listed))
        self._sent = {name: state for name, state in self._present().items() if name in self._listed}

    def send(self) -> None:
        """Carries what is new, has grown or was written anew; raises StorageError where that cannot be done."""
        if self._run.local:
            return
        present = self._present()
        changed = [name for name, state in present.items() if self._sent.get(name) != state]
        self._list(
            {name for name in changed if name in self._sent or present[name][0] <= _SMALL_BYTES}
            | (self._listed & present.keys())
        )
        self._run.each(self._send, changed)
        self._run.each(self._run.delete, [name for name in self._sent if name not in present])
        self._sent = present

    def close(self) -> None:
        """Removes the temporary folder."""
        if not self._run.local:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _present(self) -> dict[str, tuple[int, int]]:
        """Every file in the folder, with its size and when it was written, in nanoseconds."""
        found = {}
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    state = path.stat()
                    found[path.relative_to(self.folder).as_posix()] = state.st_size, state.st_mtime_ns
        return found

    def _list(self, files: set[str]) -> None:
        """Says which files are to be taken up again; before they are sent, as none may be there that nobody knows."""
        if files != self._listed:
            self._run.write(f"{_LISTS}/rank-{self._rank:04d}.json", sealed(json.dumps({"files": sorted(files)})))
            self._listed = files

    def _files_in(self, name: str) -> Iterable[str]:
        try:
            files = read_json(
                self._run, f"{_LISTS}/{name}", mapping, "What its rank's hooks wrote is left where it is."
            )["files"]
        except (FileNotFoundError, DamagedFile, KeyError):
            return []
        return [
            file
            for file in files
            if isinstance(file, str) and (self.folder / file).resolve().is_relative_to(self.folder.resolve())
        ]

    def _fetch(self, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), self._run.fetched(name) as content, path.open("wb") as file:
            shutil.copyfileobj(content, file)

    def _send(self, name: str) -> None:
        with suppress(FileNotFoundError), (self.folder / name).open("rb") as file:
            self._run.send(file, name)


def _rank_of(name: str) -> int:
    number = name.removeprefix("rank-").removesuffix(".json")
    return int(number) if number.isdecimal() else 0
