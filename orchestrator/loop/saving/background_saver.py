"""Saving checkpoints in the background: training continues once they are copied. Runs in workers."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import TypeVar

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.saving.background_writes import BackgroundWrite
from orchestrator.loop.saving.collecting import CheckpointCollector
from orchestrator.loop.saving.flushing import RowFlusher
from orchestrator.loop.saving.host_copies import HostCopier
from orchestrator.loop.saving.saver import CheckpointSaver, PreparedCheckpoint

_T = TypeVar("_T")


class _Deletions:
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


class BackgroundSaver(CheckpointSaver):
    """Saver of the hook `checkpoint: {background: true}`: training waits until all tensors are
    copied, and continues while the copy is written. One checkpoint at a time is written.

    A checkpoint has all files, without links.
    """

    in_background = True

    def __init__(
        self,
        store: CheckpointStore,
        collector: CheckpointCollector,
        flusher: RowFlusher,
        send_artifacts: Callable[[], None],
    ) -> None:
        super().__init__(store, collector, flusher, send_artifacts)
        self._copier = HostCopier(self._world.device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        """Thread that writes checkpoints and deletes old ones."""
        self._deletions = _Deletions(self._thread)
        self._store.index.postpone_deletions(self._deletions.submit)
        self._unpublished: BackgroundWrite | None = None
        """Write of the checkpoint that is not yet committed."""
        self._paused_s = 0.0
        """Seconds that training waited for it."""

    def save(self, name: str) -> None:
        self.finish()
        self.close()
        super().save(name)

    def _detach(self, contents: _T) -> _T:
        return self._copier.copy(contents)

    def _write(self, checkpoint: PreparedCheckpoint, start: float) -> None:
        self._unpublished = BackgroundWrite.start(
            checkpoint, self._store, self._world, self._thread
        )
        self._paused_s = perf_counter() - start

    # Finishing what is written

    def finish(self) -> None:
        write = self._take_unpublished()
        if write is None:
            return
        start = perf_counter()
        try:
            self._do_on_all_ranks(write.name, write.wait_for_files)
        except CheckpointError:
            write.end(peer_timeout_s=0)
            raise
        self._do_on_master(write.name, partial(write.end, peer_timeout_s=None))
        self._publish(write, start)

    def finish_if_written(self) -> bool:
        write = self._unpublished
        if write is None:
            return False
        is_writing, has_failed = self._world.maximum(
            [float(write.is_writing), float(write.has_failed)]
        )
        if is_writing and not has_failed:
            return False
        self.finish()
        return True

    def finish_without_peers(self) -> None:
        write = self._take_unpublished()
        if write is None:
            return
        start = perf_counter()
        write.end()
        if write.is_committed():
            self._publish(write, start)

    def abandon(self) -> None:
        write = self._take_unpublished()
        if write is not None:
            write.end()

    def close(self) -> None:
        self._deletions.finish()

    def _take_unpublished(self) -> BackgroundWrite | None:
        write = self._unpublished
        self._unpublished = None
        return write

    def _publish(self, write: BackgroundWrite, start: float) -> None:
        """Announce a committed checkpoint, for which training waits again since the time `start`."""
        waited_s = self._paused_s + perf_counter() - start
        self._announce(write.name, waited_s)
        self._flusher.charge("write", write.seconds)
