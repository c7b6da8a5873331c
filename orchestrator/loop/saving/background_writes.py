"""Writing of a checkpoint's files in the background, by a thread that writes a copy."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from time import perf_counter

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.saving.saver import Entries, PreparedCheckpoint
from orchestrator.loop.world import World
from orchestrator.storage.strict_json import format_json, parse_json

_POLL_S = 0.5
"""Maximum pause between two checks of the master for the files of other ranks."""
PEER_TIMEOUT_S = 10.0
"""Seconds that the master waits, after its own files, for the files of ranks that may have died."""


class Deletions:
    """Deletions of old checkpoints by a thread, one after the other."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._submitted: list[Future[None]] = []

    def submit(self, delete: Callable[[], None]) -> None:
        """Let the thread delete a checkpoint."""
        self._submitted.append(self._thread.submit(delete))

    def finish(self) -> None:
        """Wait for all deletions; raises the first error."""
        submitted = self._submitted
        self._submitted = []
        for deletion in submitted:
            deletion.result()


class BackgroundWrite:
    """Write of this rank's files of one checkpoint in a thread, which calls no collective.

    Each rank writes a file with its manifest entries. The master's thread commits once all of them
    exist.
    """

    def __init__(
        self,
        checkpoint: PreparedCheckpoint,
        store: CheckpointStore,
        world: World,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.name = checkpoint.name
        self._files = checkpoint.files
        self._commit = checkpoint.commit
        self._world = world
        self._store = store
        self._folder = self._store.storage / self._store.get_staging_folder(self.name)
        self._given_up = Event()
        self.seconds = 0.0
        """Seconds that the write has taken."""
        self._entries: Entries = {}
        """Files that this rank has written."""
        self._written = thread.submit(self._write)
        self._published = self._written
        if self._world.is_master:
            self._published = thread.submit(self._publish)

    @property
    def is_writing(self) -> bool:
        return not self._published.done()

    @property
    def has_failed(self) -> bool:
        parts = (self._written, self._published)
        return any(part.done() and part.exception() is not None for part in parts)

    def wait(self) -> BaseException | None:
        """Wait until this rank's write succeeds or fails; return the error if it fails."""
        return self._written.exception()

    def end(self, peer_timeout_s: float | None = PEER_TIMEOUT_S) -> bool:
        """Wait until nothing of the checkpoint is being written; return whether it is committed.

        The master waits up to `peer_timeout_s` longer for files of ranks that may be dead; None if
        all ranks have written their files. No communication. Raises this rank's own error.
        """
        wait([self._written])
        wait([self._published], timeout=peer_timeout_s)
        self._given_up.set()
        self._written.result()
        return self._published.result()

    def _write(self) -> bool:
        start = perf_counter()
        self._entries = self._store.write_files(self.name, self._files)
        self._files = {}
        if not self._world.is_master:
            self._folder.write(_entries_file(self._world.rank), format_json(self._entries))
        self.seconds = perf_counter() - start
        return True

    def _publish(self) -> bool:
        """Commit once all ranks have written their files; return whether they have."""
        if not self._entries:
            return False
        start = perf_counter()
        files = [_entries_file(rank) for rank in range(1, self._world.world_size)]
        pause_s = 0.01
        while files and not set(files).issubset(self._folder.names()):
            if self._given_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _POLL_S)

        entries = dict(self._entries)
        for text in self._folder.map(self._folder.read, files):
            entries |= parse_json(text)
        self._folder.map(self._folder.delete, files)
        self._commit(entries)
        self.seconds += perf_counter() - start
        return True


def _entries_file(rank: int) -> str:
    return f"rank-{rank:04d}.json"
