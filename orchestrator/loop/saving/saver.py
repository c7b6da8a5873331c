"""Saving the checkpoints of a run by all ranks, whatever the contents. Runs in workers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from hooks.position import Position
from hooks.state import State
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import CheckpointError
from orchestrator.loop.rank_work import OtherRankFailed, do_on_all_ranks, do_on_master
from orchestrator.loop.saving.collecting import CheckpointCollector
from orchestrator.loop.saving.flushing import RowFlusher

_T = TypeVar("_T")

Entries = Mapping[str, dict[str, Any]]
"""Entries of a manifest, by the names of the files."""


class Saver:
    """Saver of a run that stores no checkpoints, and the base of those that store them.

    `finish` and the methods after it are for a checkpoint that is being written in the background.
    """

    in_background = False
    """True if training continues while a checkpoint is being written."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.last_name: str | None = None
        """The newest stored checkpoint."""
        self.last_position: Position | None = None
        """The training's position at the newest checkpoint. Its manifest has the run's, which also
        says how far the run's round is."""

    def continue_from(self, name: str) -> None:
        """Take the checkpoint that was just restored as the newest one."""
        self.last_name = name
        self.last_position = self._state.position

    def save(self, name: str) -> None:
        """Write checkpoint `name`, or start to write it in the background; collective."""

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; collective.

        Raises a rank's error on every rank.
        """

    def finish_if_written(self) -> bool:
        """Finish if no rank is still writing, and return whether so.

        Collective while a checkpoint is being written.
        """
        return False

    def finish_without_peers(self) -> None:
        """Finish although other ranks may be dead.

        Abandons a checkpoint that they have not written in time.
        """

    def abandon(self) -> None:
        """Finish after a failure, on this rank alone and without hooks."""

    def close(self) -> None:
        """Wait until old checkpoints are deleted; raises the error of a failed deletion."""


@dataclass(frozen=True)
class PreparedCheckpoint:
    """A checkpoint that this rank is about to write."""

    name: str
    files: Mapping[str, Any]
    """Contents of this rank's files."""
    commit: Callable[[Entries], None]
    """Function that publishes the checkpoint, once all ranks have written the files of these
    entries."""
    has_shards: bool
    """True if each rank writes shards of tensors."""


class CheckpointSaver(Saver):
    """Saver that writes checkpoints while training waits. Every rank takes part.

    `send_artifacts` uploads files that hooks wrote. `training_files` are those that another run of the
    same training has already stored, which are linked instead of written again.
    """

    def __init__(
        self,
        store: CheckpointStore,
        collector: CheckpointCollector,
        flusher: RowFlusher,
        send_artifacts: Callable[[], None],
        training_files: TrainingFiles | None = None,
    ) -> None:
        super().__init__(collector.state)
        self._store = store
        self._collector = collector
        self._plan = collector.plan
        self._world = collector.world
        self._flusher = flusher
        self._send_artifacts = send_artifacts
        self._training_files = training_files

    def save(self, name: str) -> None:
        name = self._do_on_master(name, partial(self._store.choose_name, name))
        start = perf_counter()
        checkpoint = self._prepare(name)
        self.last_position = self._state.position
        self._write(checkpoint, start)

    def _prepare(self, name: str) -> PreparedCheckpoint:
        """Collect what this rank writes; collective.

        If `on_save` or the state of a hook or the task fails on one rank, the others wait in their
        next collective, perhaps another hook's, until that failure aborts them.
        """
        shared, sharded = self._collector.collect_shared()
        self._do_on_all_ranks(name, partial(self._prepare_storage, name))

        files = self._collector.make_files(shared)
        details = self._collector.make_details() if self._world.is_master else {}
        files, details = self._detach((files, details))
        if sharded:
            # Its import takes long, and most runs have no sharded tensors.
            from orchestrator.disk.checkpoints.sharded_tensors import make_shard_files

            files |= make_shard_files(sharded, self._world.rank, self._world.world_size)
        position = self._collector.cursor.position()
        commit = partial(self._store.commit, name, position=position, details=details)
        return PreparedCheckpoint(name, files, commit, has_shards=bool(sharded))

    def _prepare_storage(self, name: str) -> None:
        """Write what has to be stored before a checkpoint, and delete what is left of an interrupted
        save of the same name."""
        # A resume relies on this: the rows that led to a checkpoint are on disk before it.
        self._flusher.flush(is_saving=True)
        self._send_artifacts()
        self._store.discard_unfinished(name)

    def _detach(self, contents: _T) -> _T:
        """Return contents that later iterations do not change before they are written."""
        return contents

    def _write(self, checkpoint: PreparedCheckpoint, start: float) -> None:
        """Write and announce a checkpoint, for which training waits since the time `start`;
        collective."""
        self._write_files(checkpoint)
        self._announce(checkpoint.name, waited_s=perf_counter() - start)

    def _write_files(self, checkpoint: PreparedCheckpoint) -> None:
        """Write this rank's files, and commit those of all ranks; collective.

        Raises a rank's error on every rank.
        """
        name = checkpoint.name
        training_files = None
        if self._world.is_master and not checkpoint.has_shards:
            training_files = self._training_files

        def write() -> Entries:
            linked: Entries = {}
            if training_files:
                linked = training_files.link(self._state.position, self._store, name)
            files = checkpoint.files
            unlinked = {file: files[file] for file in files if file not in linked}
            return {**linked, **self._store.write_files(name, unlinked)}

        entries_by_rank = self._do_on_all_ranks(name, write)
        entries: dict[str, dict[str, Any]] = {}
        for own in entries_by_rank:
            entries |= own
        self._do_on_master(name, partial(checkpoint.commit, entries))
        if training_files:
            training_files.keep(self._state.position, self._store, name, entries_by_rank[0])

    def _do_on_all_ranks(self, name: str, work: Callable[[], _T]) -> list[_T]:
        """Do this rank's part of saving a checkpoint, as `do_on_all_ranks` does; raises
        CheckpointError where another rank has failed."""
        with self._naming_checkpoint(name):
            return do_on_all_ranks(self._world, work)

    def _do_on_master(self, name: str, work: Callable[[], _T]) -> _T:
        """Run `work` on the master; every rank returns its result. Raises as `_do_on_all_ranks`
        does."""
        with self._naming_checkpoint(name):
            return do_on_master(self._world, work)

    @contextmanager
    def _naming_checkpoint(self, name: str) -> Iterator[None]:
        try:
            yield
        except OtherRankFailed as error:
            path = self._store.get_path(name)
            raise CheckpointError(f"checkpoint {path} cannot be written: {error}") from None

    def _announce(self, name: str, waited_s: float) -> None:
        """Fire `on_saved` for a committed checkpoint, for which training has waited. The wait counts
        as the loop's, and so does this, without the hooks."""
        start = perf_counter()
        self.last_name = name
        with self._store.index.edit():
            self._store.retain("run", [name])
            hooks_start = perf_counter()
            self._plan.fire("on_saved", self._state, self._store.get_path(name))
            hooks_s = perf_counter() - hooks_start
        own_s = perf_counter() - start - hooks_s
        self._flusher.charge("save", waited_s + own_s)
