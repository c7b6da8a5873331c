"""Writing of a checkpoint's files in the background, by a thread that writes a copy."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from time import perf_counter, sleep
from typing import Any, Self

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.saving.saver import Entries, PreparedCheckpoint
from orchestrator.loop.world import World
from orchestrator.storage.strict_json import format_json, parse_json

_POLL_S = 0.5
"""Maximum pause between two looks at the files of other ranks."""
PEER_TIMEOUT_S = 10.0
"""Seconds that a rank waits, after its own files, for the files of ranks that may have died."""


class BackgroundWrite:
    """Write of this rank's files of one checkpoint in a thread, which calls no collective.

    Each rank writes a file with its manifest entries. The master's thread commits once all of them
    exist.
    """

    _written: Future[Entries]
    """The entries of this rank's files."""
    _published: Future[bool] | None = None
    """Whether the checkpoint is committed; None on all ranks but the master."""

    def __init__(self, name: str, store: CheckpointStore, world: World) -> None:
        self.name = name
        self.seconds = 0.0
        """Seconds that the write has taken."""
        self._world = world
        self._store = store
        self._folder = store.storage / store.get_staging_folder(name)
        self._given_up = Event()

    @classmethod
    def start(
        cls,
        checkpoint: PreparedCheckpoint,
        store: CheckpointStore,
        world: World,
        thread: ThreadPoolExecutor,
    ) -> Self:
        """Let the thread write this rank's files, and on the master then commit the checkpoint."""
        write = cls(checkpoint.name, store, world)
        write._written = thread.submit(write._write, checkpoint)
        if world.is_master:
            write._published = thread.submit(write._publish, checkpoint.commit)
        return write

    @property
    def is_writing(self) -> bool:
        """True until this rank has written its files, and the master has also committed."""
        return not all(part.done() for part in self._list_parts())

    @property
    def has_failed(self) -> bool:
        return any(part.done() and part.exception() is not None for part in self._list_parts())

    def _list_parts(self) -> list[Future[Any]]:
        return [self._written] if self._published is None else [self._written, self._published]

    def wait_for_files(self) -> None:
        """Wait until this rank has written its files; raises the error if it could not."""
        _raise_error(self._written)

    def end(self, peer_timeout_s: float | None = PEER_TIMEOUT_S) -> None:
        """Wait until this rank writes nothing of the checkpoint any more.

        The master waits up to `peer_timeout_s` longer for files of ranks that may be dead; None if
        all ranks have written their files. No communication. Raises this rank's own error.
        """
        wait([self._written])
        wait(self._list_parts(), timeout=peer_timeout_s)
        self._given_up.set()
        for part in self._list_parts():
            _raise_error(part)

    def is_committed(self) -> bool:
        """Return whether the checkpoint is committed; call it after `end`. No communication.

        A rank other than the master looks for the checkpoint, up to `PEER_TIMEOUT_S`.
        """
        if self._published is not None:
            return self._published.result()
        last_look = perf_counter() + PEER_TIMEOUT_S
        while not self._store.is_committed(self.name):
            if perf_counter() > last_look:
                return False
            sleep(_POLL_S)
        return True

    def _write(self, checkpoint: PreparedCheckpoint) -> Entries:
        start = perf_counter()
        entries = self._store.write_files(self.name, checkpoint.files)
        if not self._world.is_master:
            self._folder.write(_entries_file(self._world.rank), format_json(entries))
        self.seconds = perf_counter() - start
        return entries

    def _publish(self, commit: Callable[[Entries], None]) -> bool:
        """Commit once all ranks have written their files; return whether they have."""
        if self._written.exception() is not None:
            return False
        start = perf_counter()
        files = [_entries_file(rank) for rank in range(1, self._world.world_size)]
        pause_s = 0.01
        while files and not set(files).issubset(self._folder.names()):
            if self._given_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _POLL_S)

        entries = dict(self._written.result())
        for text in self._folder.map(self._folder.read, files):
            entries |= parse_json(text)
        self._folder.map(self._folder.delete, files)
        commit(entries)
        self.seconds += perf_counter() - start
        return True


def _raise_error(part: Future[Any]) -> None:
    """Raise the error of a part that has ended, also one that is false, which `result` hides."""
    error = part.exception()
    if error is not None:
        raise error


def _entries_file(rank: int) -> str:
    return f"rank-{rank:04d}.json"
