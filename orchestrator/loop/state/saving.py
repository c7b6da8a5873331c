"""Writing of checkpoints by all ranks, whatever the contents. Runs in workers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.plan import Plan
from hooks.position import Position, Stage
from hooks.state import State
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import CheckpointError
from orchestrator.loop.state.background_writes import Background, BackgroundWrite, Entries
from orchestrator.loop.state.contents import CheckpointContents
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.state.flushing import RowFlusher
from orchestrator.loop.state.random_states import RandomStates
from orchestrator.loop.world import World
from orchestrator.randomness import random_state


class CheckpointSaver:
    """Writer of checkpoints, in which every rank takes part.

    With the hook `checkpoint: {background: true}`, training continues as soon as all tensors are
    copied, while one checkpoint at a time is written. `send_artifacts` uploads files that hooks
    wrote.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        state: State,
        plan: Plan,
        contents: CheckpointContents,
        cursor: RunCursor,
        world: World,
        random_states: RandomStates,
        flusher: RowFlusher,
        send_artifacts: Callable[[], None],
        training_files: TrainingFiles | None = None,
    ) -> None:
        self.store = store
        self._state = state
        self._plan = plan
        self._contents = contents
        self._cursor = cursor
        self._world = world
        self._random_states = random_states
        self._flusher = flusher
        self._send_artifacts = send_artifacts
        self._training_files = training_files

        hooks = plan.hooks.values()
        in_background = any(isinstance(hook, Checkpoint) and hook.background for hook in hooks)
        self.background = Background(world, store) if store and in_background else None
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
        shared, sharded = self._collect_shared()
        # A resume relies on this: the rows that led to a checkpoint are on disk before it.
        self._flusher.flush(is_saving=True)
        self._send_artifacts()
        self.store.discard_unfinished(name)
        self._world.barrier()

        files = self._make_files(shared)
        details = self._make_details() if self._world.is_master else {}
        if self.background:
            files, details = self.background.copy((files, details))
        if sharded:
            from orchestrator.disk.checkpoints.sharded_tensors import files_with_shards

            files |= files_with_shards(sharded, self._world.rank, self._world.world_size)
        commit = partial(
            self.store.commit,
            name,
            position=self._cursor.position(),
            details=details,
        )
        self.last_position = self._state.position
        if self.background:
            self._unpublished = BackgroundWrite(self.background, name, files, commit)
            self._paused_s = perf_counter() - start
            return

        is_alike = self._world.is_master and not sharded
        training_files = self._training_files if is_alike else None
        entries = self._write(name, files, commit, training_files)
        self._announce(name, start)
        if training_files:
            training_files.keep(self._state.position, self.store, name, entries)

    def _collect_shared(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents that all ranks share, by file, and the sharded tensors in them."""
        content = self._contents.shared()
        content["hooks"] = {name: hook.state_dict() for name, hook in self._plan.hooks.items()}
        self._plan.fire("on_save", self._state, content)
        self._contents.trim(content)
        if self._contents.mesh is None:
            return placeholders.encode(content), {}
        shards: placeholders.Sharded = {}
        return placeholders.encode(content, shards), dict(shards.values())

    def _make_files(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents of this rank's files, except for sharded tensors."""
        rank_state = placeholders.encode(self._collect_rank_state())
        files = {name_rank_file(self._world.rank): rank_state}
        if self._world.is_master:
            files |= {f"{key}.pt": value for key, value in shared.items()}
        return files

    def _collect_rank_state(self) -> dict[str, Any]:
        position = self._cursor.position()
        is_evaluated = position.stage > Stage.TRAINED
        return {
            "random": random_state(),
            "after_training": self._random_states.after_training if is_evaluated else None,
            "hooks": {name: hook.rank_state_dict() for name, hook in self._plan.hooks.items()},
            "position": {**asdict(position), "stage": int(position.stage)},
            **self._contents.per_rank(),
        }

    def _make_details(self) -> dict[str, Any]:
        """Return the entries of the manifest."""
        state = self._state
        return {
            "run": state.name,
            "world_size": state.world_size,
            "stop_reasons": state.stop_reasons if self._cursor.stage > Stage.TRAINED else [],
            "metrics": state.metrics,
            "main_metric": state.main_metric,
            "media": state.media.count if state.media else 0,
            "evaluations": {
                label: weights.provider for label, weights in state.evaluations.items()
            },
            **self._contents.details(),
        }

    def _write(
        self,
        name: str,
        files: Mapping[str, Any],
        commit: Callable[[Entries], None],
        training_files: TrainingFiles | None,
    ) -> Entries:
        """Write this rank's files, and commit those of all ranks; collective.

        Returns the manifest entries of this rank's files. Raises a rank's error on every rank.
        """
        assert self.store is not None
        entries: dict[str, Any] = {}
        failure: Exception | None = None
        if training_files:
            entries |= training_files.link(self._state.position, self.store, name)
        try:
            unlinked = {file: files[file] for file in files if file not in entries}
            entries |= self.store.write_files(name, unlinked)
        except Exception as error:
            # The other ranks must not wait for this one.
            failure = error
        all_entries = self._gather_entries(name, entries, failure)
        if self._world.is_master:
            commit(all_entries)
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
