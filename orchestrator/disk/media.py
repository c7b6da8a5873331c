"""The images, figures and tables of a run: a file each, and an index with a line for each."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from queue import Full, Queue
from threading import Thread

from hooks.media import Encode, MediaEntry, measure_png
from orchestrator.storage import Storage
from orchestrator.storage.json_lines import format_line, read_lines

INDEX = "media.jsonl"
MAX_WAITING = 64
"""Maximum number of files that wait to be written; more are left out."""

_log = logging.getLogger("hookyard")


def read_media(storage: Storage) -> list[MediaEntry]:
    """Return what a run has recorded, oldest first; of what has the same file, the last one."""
    entries = read_lines(storage, INDEX, MediaEntry)
    return [*{entry.file: entry for entry in entries}.values()]


def count_media(storage: Storage) -> int:
    """Return how often a run has recorded something: the number of lines of its index."""
    return len(read_lines(storage, INDEX, MediaEntry))


class MediaWriter:
    """Writer of a run's images, figures and tables, in a thread. Used on rank 0.

    A resume keeps the first `kept` lines of the index, which its checkpoint counts, and deletes the
    files of the others. Without a storage, it only passes files to those who follow. A failure is
    logged once and raises nothing.
    """

    def __init__(self, storage: Storage | None = None, kept: int = 0) -> None:
        self._storage = storage
        self._stored = _drop_superseded(storage, kept) if storage else []
        self.count = len(self._stored)
        self._kinds = {entry.name: entry.kind for entry in self._stored}
        self._listeners: list[Callable[[MediaEntry, bytes], None]] = []
        self._jobs: Queue[tuple[MediaEntry, Encode] | None] = Queue(MAX_WAITING)
        self._thread: Thread | None = None
        self._has_warned = False

    def put(self, entry: MediaEntry, encode: Encode) -> None:
        known = self._kinds.setdefault(entry.name, entry.kind)
        if known != entry.kind:
            raise ValueError(
                f"'{entry.name}' is the name of a recorded {known}; give this {entry.kind} another"
                " name"
            )
        if self._thread is None:
            self._thread = Thread(target=self._work, name="media", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait((entry, encode))
        except Full:
            self._warn(entry, f"{MAX_WAITING} files are waiting already; record fewer of them")

    def follow(
        self,
        listener: Callable[[MediaEntry, bytes], None],
        is_wanted: Callable[[MediaEntry], bool] = lambda entry: False,
    ) -> None:
        for entry in filter(is_wanted, self._stored):
            assert self._storage is not None
            with suppress(FileNotFoundError):
                listener(entry, self._storage.read(entry.file))
        self._listeners.append(listener)

    def flush(self) -> None:
        """Wait until everything is written, and everybody who follows has it."""
        self._jobs.join()

    def close(self) -> None:
        """Write everything, and end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            entry, encode = job
            try:
                self._write(entry, encode())
            except Exception as error:  # a picture must not end a training
                self._warn(entry, error)
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    def _write(self, entry: MediaEntry, data: bytes) -> None:
        if entry.is_image:
            width, height = measure_png(data)
            entry = replace(entry, width=width, height=height)
        if self._storage is not None:
            self._storage.check_present()
            self._storage.write(entry.file, data)
            self._storage.append(INDEX, _format_entry(entry))
            self.count += 1
        for listener in self._listeners:
            listener(entry, data)

    def _warn(self, entry: MediaEntry, reason: object) -> None:
        if not self._has_warned:
            _log.warning("The %s %s is not written: %s", entry.kind, entry.name, reason)
        self._has_warned = True


def _format_entry(entry: MediaEntry) -> str:
    return format_line({**asdict(entry), "file": entry.file})


def _drop_superseded(storage: Storage, kept: int) -> list[MediaEntry]:
    """Delete all but the first `kept` lines of the index, with their files, and return the
    others."""
    entries = read_lines(storage, INDEX, MediaEntry)
    if storage.exists(INDEX):  # also one whose only line was cut short
        storage.write(INDEX, "".join(map(_format_entry, entries[:kept])))
    files = {entry.file for entry in entries[:kept]}
    storage.map(storage.delete, sorted({entry.file for entry in entries[kept:]} - files))
    return entries[:kept]
