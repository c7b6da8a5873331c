"""Writing and restoring of checkpoints by all ranks, whatever the contents, and its costs. Runs in
workers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from hooks.errors import HookError
from hooks.hook import Hook
from hooks.plan import Plan
from hooks.position import Position, Stage
from hooks.state import State
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.disk.checkpoints.store import CheckpointStore, TrainingFiles, shared_files
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import CheckpointError
from orchestrator.loop.state.background_writes import Background, BackgroundWrite, Entries
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state


class RowWriter:
    """Writer of a rank's rows, together with the costs of hooks and of saving."""

    def __init__(self, recorder: Recorder, plan: Plan, state: State, cursor: RunCursor) -> None:
        self._recorder, self._plan, self._state, self._cursor = recorder, plan, state, cursor
        self._charges: dict[str, list[float]] = {}

    def charge(self, event: str, seconds: float) -> None:
        """Add a cost of the loop: `save`, for which training waited, or `write`, which ran in the
        background."""
        self._charges.setdefault(event, []).append(seconds)

    def flush(self, *, is_saving: bool = False) -> None:
        """Write the rows so far, and the costs since the last flush; before a checkpoint if
        `is_saving`."""
        self._record(self._cursor.stage + (not is_saving))
        self._recorder.sync()

    def close(self) -> None:
        self._record(self._cursor.stage + 1)
        self._recorder.close()

    def _record(self, stage: int) -> None:
        """Record costs that precede a checkpoint at this iteration and `stage` or a later one."""
        state = self._state
        position = {
            "epoch": self._cursor.epoch_label,
            "iteration": state.iteration,
            "step": state.step,
            "stage": stage,
        }
        charges, self._charges = self._charges, {}
        own = [
            {"hook": "(loop)", "event": event, "calls": len(costs), "seconds": sum(costs)}
            for event, costs in charges.items()
        ]
        self._recorder.append_costs(
            [{**position, **cost} for cost in self._plan.drain_costs() + own]
        )


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint to restore on this rank."""

    name: str
    manifest: Mapping[str, Any]
    shared: dict[str, Any]
    """Contents that all ranks share, by file."""
    rank_state: Mapping[str, Any]
    """This rank's own contents."""
    load_rank_state: Callable[[int], Mapping[str, Any]]
    """Function that returns the contents of another rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks that saved it."""
        return int(self.manifest["world_size"])

    def read_per_rank(self, key: str, world_size: int) -> dict[str, Any]:
        """Return an entry of this rank's contents; raises CheckpointError if it holds states of
        other ranks."""
        states: dict[str, Any] = (
            self.rank_state if key in self.rank_state else self.load_rank_state(0)
        )[key]
        if states and self.world_size != world_size:
            raise CheckpointError(
                f"checkpoint '{self.name}' holds {', '.join(states)} of {self.world_size} ranks; set workers.count:"
                f" {self.world_size}"
            )
        return states


class CheckpointContents(Protocol):
    """Contents of a checkpoint, except for hooks, random state and the run's position."""

    files: tuple[str, ...]
    """Files that every such checkpoint has."""
    unread: tuple[str, ...]
    """Files that a restore does not read."""

    @property
    def mesh(self) -> Any:
        """Device mesh over which tensors are sharded; None if they are not."""

    def shared(self) -> dict[str, Any]:
        """Return the contents that all ranks share, by file."""

    def per_rank(self) -> dict[str, Any]:
        """Return this rank's own contents."""

    def details(self) -> dict[str, Any]:
        """Return entries of the manifest."""

    def restore(self, loaded: LoadedCheckpoint) -> None:
        """Restore the contents, after the run's position; raises CheckpointError if they do not
        fit."""


class CheckpointSaver:
    """Writer and reader of checkpoints, in which every rank takes part.

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
        row_writer: RowWriter,
        send_artifacts: Callable[[], None],
    ) -> None:
        self.store, self._state, self._plan, self._world = store, state, plan, world
        self._contents, self._cursor = contents, cursor
        self._row_writer, self._send_artifacts = row_writer, send_artifacts
        self.last_path: str | None = None
        """The newest stored checkpoint."""
        self.last_position: Position | None = None
        """The state's position at the newest checkpoint."""
        self._random_state: dict[str, Any] | None = None
        self.after_training: dict[str, Any] | None = None
        """Random state at the end of the last training phase, with which each evaluation begins."""
        in_background = getattr(plan.hooks.get("checkpoint"), "background", False)
        self.background = Background(world, store) if store and in_background else None
        self._unpublished: BackgroundWrite | None = None
        """Write of the checkpoint that is not yet committed."""
        self._paused_s = 0.0
        self.training_files: TrainingFiles | None = None
        """Files of the training that another run of the same training has already stored."""
        self.restored_hooks: Mapping[str, Hook] = plan.hooks
        """Hooks whose state is restored."""

    def save(self, name: str) -> None:
        """Write checkpoint `name`, or start to write it in the background; collective."""
        if self.store is None:
            return
        self.finish()
        self.close()
        state, store, world = self._state, self.store, self._world
        name = world.broadcast(partial(store.choose_name, name))
        start = perf_counter()
        checkpoint = {
            **self._contents.shared(),
            "hooks": {name: hook.state_dict() for name, hook in self._plan.hooks.items()},
        }
        self._plan.fire("on_save", state, checkpoint)
        shards: placeholders.Sharded | None = None if self._contents.mesh is None else {}
        checkpoint = placeholders.encode(checkpoint, shards)
        sharded = dict(shards.values()) if shards else {}
        # A resume relies on this: the rows that led to a checkpoint are on disk before it.
        self._row_writer.flush(is_saving=True)
        self._send_artifacts()
        store.discard_unfinished(name)
        world.barrier()
        files, details = self._make_files(checkpoint, sharded)
        commit = partial(store.commit, name, position=self._cursor.position(), details=details)
        self.last_position = state.position
        if self.background:
            self._unpublished = BackgroundWrite(self.background, name, files, commit)
            self._paused_s = perf_counter() - start
            return
        shared = self.training_files if world.is_master and not sharded else None
        linked = shared.link(state.position, store, name) if shared else {}
        own = {file: content for file, content in files.items() if file not in linked}
        entries, failure = linked, None
        try:
            entries = {**linked, **store.write_files(name, own)}
        except Exception as error:  # reported to the other ranks, which must not wait for this one
            failure = error
        all_entries = self._gather_entries(name, entries, failure)
        if world.is_master:
            commit(all_entries)
        world.barrier()
        self._announce(name, start)
        if shared:
            shared.keep(state.position, store, name, entries)

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; collective. Raises a rank's error
        on every rank."""
        write, self._unpublished = self._unpublished, None
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

    def _gather_entries(
        self, name: str, entries: Entries, failure: BaseException | None
    ) -> Entries:
        """Return the manifest entries of all ranks' files; collective. Raises a rank's `failure` on
        every rank."""
        assert self.store is not None
        ranks = self._world.gather((entries, failure and f"rank {self._world.rank}: {failure}"))
        failures = [text for _, text in ranks if text]
        if failure:
            raise failure
        if failures:
            raise CheckpointError(
                f"checkpoint {self.store.get_path(name)} cannot be written: {'; '.join(failures)}"
            )
        return {file: entry for own, _ in ranks for file, entry in own.items()}

    def finish_if_written(self) -> bool:
        """Finish if no rank is still writing, and return whether so. Collective while a checkpoint
        is being written."""
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
        """Finish although other ranks may be dead; gives up a checkpoint that they have not written
        in time."""
        start, write = perf_counter(), self._unpublished
        if write and self.abandon():
            self._announce(write.name, start - self._paused_s, write.seconds)

    def abandon(self) -> bool:
        """Finish after a failure, on this rank alone and without hooks; return whether the
        checkpoint is committed."""
        write, self._unpublished = self._unpublished, None
        return write is not None and write.end()

    def close(self) -> None:
        """Wait until old checkpoints are deleted; raises the error of a failed deletion."""
        if self.background:
            self.background.finish_deletions()

    def _announce(self, name: str, start: float, written_s: float = 0.0) -> None:
        """Fire `on_saved`, and charge the time since `start`, and in the background for writing."""
        assert self.store is not None
        self.last_path = self.store.get_path(name)
        with self.store.index.edit():
            self.store.retain("run", [name])
            stored = perf_counter()
            self._plan.fire("on_saved", self._state, self.last_path)
            announced = perf_counter()
        self._row_writer.charge("save", stored - start + perf_counter() - announced)
        if written_s:
            self._row_writer.charge("write", written_s)

    def _make_files(
        self, checkpoint: Mapping[str, Any], sharded: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return this rank's files and the manifest's details, as copies if training continues;
        collective."""
        state, world, position = self._state, self._world, self._cursor.position()
        rank_state = {
            "random": random_state(),
            "after_training": self.after_training if self._cursor.stage > Stage.TRAINED else None,
            "hooks": {name: hook.rank_state_dict() for name, hook in self._plan.hooks.items()},
            "position": {**asdict(position), "stage": int(position.stage)},
            **self._contents.per_rank(),
        }
        files, details = {_rank_file(world.rank): placeholders.encode(rank_state)}, dict[str, Any]()
        if world.is_master:
            files |= {f"{key}.pt": value for key, value in checkpoint.items()}
            details = {
                "run": state.name,
                "world_size": state.world_size,
                "stop_reasons": state.stop_reasons if position.stage > Stage.TRAINED else [],
                "metrics": state.metrics,
                "main_metric": state.main_metric,
                "evaluations": {
                    label: weights.provider for label, weights in state.evaluations.items()
                },
                **self._contents.details(),
            }
        if self.background:
            files, details = self.background.copy((files, details))
        if sharded:
            from orchestrator.disk.checkpoints import sharded_tensors as shards

            files |= shards.files_with_shards(sharded, world.rank, world.world_size)
        return files, details

    def restore(self, name: str) -> None:
        """Restore checkpoint `name` on this rank and fire `on_load`; raises UsageError if it does
        not fit."""
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        state, world, contents, load = (
            self._state,
            self._world,
            self._contents,
            partial(self.store.load, name),
        )
        manifest = world.broadcast(partial(self.store.read_manifest, name))
        files = manifest["files"]
        shared = dict.fromkeys(
            [*(f"{key}.pt" for key in (*contents.files, "hooks")), *shared_files(files)]
        )
        stored = {
            key: load(file)
            for file in shared
            if (key := file.removesuffix(".pt")) not in contents.unread
        }
        checkpoint = self.store.with_shards(name, stored, contents.mesh)
        rank_file = _rank_file(world.rank)
        rank_state = load(rank_file) if rank_file in files else {"hooks": {}}
        loaded = LoadedCheckpoint(
            name, manifest, checkpoint, rank_state, lambda rank: load(_rank_file(rank))
        )
        self._cursor.restore(parse_position(rank_state.get("position") or manifest["position"]))
        contents.restore(loaded)
        self._random_state = rank_state.get("random")
        self.after_training = rank_state.get("after_training") or self._random_state
        state.metrics = dict(manifest["metrics"])
        if (
            manifest.get("run") == state.name
        ):  # another run that continues from this checkpoint does not stop
            state.stop_reasons += manifest["stop_reasons"]
        for hook_name, hook in self.restored_hooks.items():
            try:
                if hook_name in checkpoint["hooks"]:
                    hook.load_state_dict(checkpoint["hooks"][hook_name])
                if rank_state["hooks"].get(hook_name):
                    hook.load_rank_state_dict(rank_state["hooks"][hook_name])
            except Exception as error:
                raise HookError.from_error(hook_name, "load_state_dict", error) from error
        self.last_path, self.last_position = self.store.get_path(name), state.position
        self._plan.fire("on_load", state, {**checkpoint, "name": name})

    def restore_randomness(self) -> None:
        """Restore the checkpoint's random state, once, right before training continues."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None

    def rewind_randomness(self) -> None:
        """Restore the random state at the end of the last training phase."""
        if self.after_training is not None:
            restore_random_state(self.after_training)


def _rank_file(rank: int) -> str:
    return f"rank-{rank:04d}.pt"
