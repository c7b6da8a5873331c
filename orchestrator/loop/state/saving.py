"""Writing of checkpoints by all ranks, whatever the contents. Runs in workers."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.position import Position
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import CheckpointError
from orchestrator.loop.state.background_writes import (
    Background,
    BackgroundWrite,
    Entries,
    PreparedCheckpoint,
)
from orchestrator.loop.state.collecting import CheckpointCollector
from orchestrator.loop.state.flushing import RowFlusher


class CheckpointSaver:
    """Writer of checkpoints, in which every rank takes part.

    With the hook `checkpoint: {background: true}`, training continues as soon as all tensors are
    copied, while one checkpoint at a time is written. `send_artifacts` uploads files that hooks
    wrote.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        collector: CheckpointCollector,
        flusher: RowFlusher,
        send_artifacts: Callable[[], None],
        training_files: TrainingFiles | None = None,
    ) -> None:
        self.store = store
        self._collector = collector
        self._state = collector.state
        self._plan = collector.plan
        self._world = collector.world
        self._flusher = flusher
        self._send_artifacts = send_artifacts
        self._training_files = training_files

        hooks = self._plan.hooks.values()
        in_background = any(isinstance(hook, Checkpoint) and hook.background for hook in hooks)
        self.background = Background(self._world, store) if store and in_background else None
        self._unpublished: BackgroundWrite | None = None
        """Write of the checkpoint that is not yet committed."""
        self._paused_s = 0.0
        """Seconds that training waited for the checkpoint that is not yet committed."""

        self.last_name: str | None = None
        """The newest stored checkpoint."""
        self.last_position: Position | None = None
        """The state's position at the newest checkpoint."""

    def continue_from(self, name: str) -> None:
        """Take the checkpoint that was just restored as the newest one."""
        self.last_name = name
        self.last_position = self._state.position

    # Saving

    def save(self, name: str) -> None:
        """Write checkpoint `name`, or start to write it in the background; collective."""
        if self.store is None:
            return
        self.finish()
        self.close()
        name = self._world.broadcast(partial(self.store.choose_name, name))
        start = perf_counter()
        checkpoint = self._prepare(self.store, name)
        self.last_position = self._state.position
        if self.background:
            self._unpublished = BackgroundWrite(self.background, checkpoint)
            self._paused_s = perf_counter() - start
        else:
            self._save_now(self.store, checkpoint, start)

    def _prepare(self, store: CheckpointStore, name: str) -> PreparedCheckpoint:
        """Collect what this rank writes; with a background, copy it. Collective."""
        shared, sharded = self._collector.collect_shared()
        # A resume relies on this: the rows that led to a checkpoint are on disk before it.
        self._flusher.flush(is_saving=True)
        self._send_artifacts()
        store.discard_unfinished(name)
        self._world.barrier()

        files = self._collector.make_files(shared)
        details = self._collector.make_details() if self._world.is_master else {}
        if self.background:
            files, details = self.background.copy((files, details))
        if sharded:
            from orchestrator.disk.checkpoints.sharded_tensors import files_with_shards

            files |= files_with_shards(sharded, self._world.rank, self._world.world_size)
        position = self._collector.cursor.position()
        commit = partial(store.commit, name, position=position, details=details)
        return PreparedCheckpoint(name, files, commit, has_shards=bool(sharded))

    def _save_now(
        self, store: CheckpointStore, checkpoint: PreparedCheckpoint, start: float
    ) -> None:
        """Write a checkpoint while training waits, since the time `start`; collective."""
        can_link = self._world.is_master and not checkpoint.has_shards
        training_files = self._training_files if can_link else None
        entries = self._write(store, checkpoint, training_files)
        self._announce(checkpoint.name, start)
        if training_files:
            training_files.keep(self._state.position, store, checkpoint.name, entries)

    def _write(
        self,
        store: CheckpointStore,
        checkpoint: PreparedCheckpoint,
        training_files: TrainingFiles | None,
    ) -> Entries:
        """Write this rank's files, and commit those of all ranks; collective.

        Returns the manifest entries of this rank's files. Raises a rank's error on every rank.
        """
        name = checkpoint.name
        files = checkpoint.files
        entries: dict[str, Any] = {}
        failure: Exception | None = None
        if training_files:
            entries |= training_files.link(self._state.position, store, name)
        try:
            unlinked = {file: files[file] for file in files if file not in entries}
            entries |= store.write_files(name, unlinked)
        except Exception as error:
            # The other ranks must not wait for this one.
            failure = error
        all_entries = self._gather_entries(name, entries, failure)
        if self._world.is_master:
            checkpoint.commit(all_entries)
        self._world.barrier()
        return entries

    def _gather_entries(
        self, name: str, entries: Entries, failure: BaseException | None
    ) -> Entries:
        """Return the manifest entries of all ranks' files; collective.

        Raises a rank's `failure` on every rank.
        """
        assert self.store is not None
        message = f"rank {self._world.rank}: {failure}" if failure else ""
        ranks = self._world.gather((entries, message))
        if failure:
            raise failure
        messages = [message for _, message in ranks if message]
        if messages:
            raise CheckpointError(
                f"checkpoint {self.store.get_path(name)} cannot be written: {'; '.join(messages)}"
            )
        all_entries: dict[str, dict[str, Any]] = {}
        for entries_of_rank, _ in ranks:
            all_entries |= entries_of_rank
        return all_entries

    def _announce(self, name: str, start: float, written_s: float = 0.0) -> None:
        """Fire `on_saved`, and record the costs of a checkpoint.

        They are the time since `start`, without the hooks, and `written_s` in the background.
        """
        assert self.store is not None
        self.last_name = name
        with self.store.index.edit():
            self.store.retain("run", [name])
            stored = perf_counter()
            self._plan.fire("on_saved", self._state, self.store.get_path(name))
            announced = perf_counter()
        self._flusher.charge("save", stored - start + perf_counter() - announced)
        if written_s:
            self._flusher.charge("write", written_s)

    # Finishing what is written in the background

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; collective.

        Raises a rank's error on every rank.
        """
        write = self._take_unpublished()
        if write is None:
            return
        start = perf_counter()
        try:
            self._gather_entries(write.name, {}, write.wait())
        except CheckpointError:
            write.end(peer_timeout_s=0)
            raise
        write.end(peer_timeout_s=None)
        self._world.barrier()
        self._announce(write.name, start - self._paused_s, write.seconds)

    def finish_if_written(self) -> bool:
        """Finish if no rank is still writing, and return whether so.

        Collective while a checkpoint is being written.
        """
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
        """Finish although other ranks may be dead.

        Abandons a checkpoint that they have not written in time.
        """
        start = perf_counter()
        write = self._unpublished
        if write and self.abandon():
            self._announce(write.name, start - self._paused_s, write.seconds)

    def abandon(self) -> bool:
        """Finish after a failure, on this rank alone and without hooks.

        Returns whether the checkpoint is committed.
        """
        write = self._take_unpublished()
        return write is not None and write.end()

    def _take_unpublished(self) -> BackgroundWrite | None:
        write = self._unpublished
        self._unpublished = None
        return write

    def close(self) -> None:
        """Wait until old checkpoints are deleted; raises the error of a failed deletion."""
        if self.background:
            self.background.finish_deletions()
