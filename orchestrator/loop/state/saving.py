"""Saving: a checkpoint is written, or put back, by all ranks together, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from hooks.plan import Plan
from hooks.state import State
from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.manifest import position_in
from orchestrator.checkpoint.position import Stage
from orchestrator.checkpoint.store import CheckpointStore, shared_files
from orchestrator.checkpoint.training_files import TrainingFiles
from orchestrator.errors import CheckpointError
from orchestrator.loop.clock.hook_costs import Ledger
from orchestrator.loop.state.checkpoint_writes import Background, BackgroundWrite, ForegroundWrite
from orchestrator.loop.state.cursor import TrainingCursor
from orchestrator.loop.world import World
from orchestrator.randomness import restore_random_state, storable_random_state


class Contents(Protocol):
    """What a checkpoint holds beside hooks, generators and the run's position."""

    files: tuple[str, ...]
    """The files without which there is no such checkpoint."""
    unread: tuple[str, ...]
    """Those that are left where they are."""

    @property
    def mesh(self) -> Any:
        """The mesh over which ranks share out tensors; None where they do not."""

    def shared(self) -> dict[str, Any]:
        """What all ranks have alike, by its file."""

    def per_rank(self) -> dict[str, Any]:
        """What is this rank's own."""

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""

    def restore(self, name: str, manifest: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        """Puts back what all ranks have alike; raises CheckpointError where it does not fit."""

    def restore_rank(
        self, rank_state: Mapping[str, Any], saved_world_size: int, other: Callable[[int], Mapping[str, Any]]
    ) -> None:
        """Puts back this rank's own, once the run stands where the checkpoint does; `other` gives that of another
        rank."""


class Saving:
    """Writes and restores checkpoints, every rank taking part. Worker process.

    Where the hook `checkpoint` says `background` training goes on once all is copied, and one checkpoint at a time is
    written meanwhile. `send_artifacts` carries what hooks wrote to where the run lies.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        state: State,
        plan: Plan,
        contents: Contents,
        cursor: TrainingCursor,
        world: World,
        ledger: Ledger,
        send_artifacts: Callable[[], None],
    ) -> None:
        self.store, self._state, self._plan, self._world = store, state, plan, world
        self._contents, self._cursor = contents, cursor
        self._ledger, self._send_artifacts = ledger, send_artifacts
        self.last_path: str | None = None
        """The newest stored checkpoint."""
        self.last_step = -1
        """The step at which it was made."""
        self._random_state: dict[str, Any] | None = None
        self.after_training: dict[str, Any] | None = None
        """The generators as the last training phase left them: evaluation begins with these."""
        in_background = getattr(plan.hooks.get("checkpoint"), "background", False)
        self._background = Background(world.device, store) if store and in_background else None
        self._unpublished: tuple[str, ForegroundWrite] | None = None
        """The checkpoint whose files are being written, or just were, and which nobody sees yet."""
        self._paused_s = 0.0
        self.training_files: TrainingFiles | None = None
        """What runs that share this training have stored of it."""

    def save(self, name: str) -> None:
        """Takes checkpoint `name` down and writes it, or has it written in the background; collective. Nothing where
        the loop has no store."""
        if self.store is None:
            return
        self.finish()
        self.close()
        state, store, world = self._state, self.store, self._world
        name = world.broadcast(partial(store.free_name, name))
        begun = perf_counter()
        checkpoint = {
            **self._contents.shared(),
            "hooks": {hook: one.state_dict() for hook, one in self._plan.hooks.items()},
        }
        self._plan.fire("on_save", state, checkpoint)
        shards = placeholders.Sharded() if self._contents.mesh is not None else None
        checkpoint = placeholders.encode(checkpoint, shards)
        sharded = shards.tensors() if shards else {}
        # What led to this checkpoint must be on disk before the checkpoint is: a resume counts on it.
        self._ledger.flush()
        self._send_artifacts()
        store.discard_unfinished(name)
        world.barrier()
        files, described = self._files(checkpoint, sharded)
        commit = partial(store.commit, name, position=self._cursor.position(), details=described)
        self.last_step = state.step
        if self._background:
            self._unpublished = name, BackgroundWrite(self._background.thread, world, store, name, files, commit)
            self._paused_s = perf_counter() - begun
            return
        shared = self.training_files if world.is_master and not sharded else None
        linked = shared.link(self._place(), store, name) if shared else {}
        write = ForegroundWrite(
            store, name, {file: content for file, content in files.items() if file not in linked}, commit
        )
        write.entries = {**linked, **write.entries}
        self._unpublished = name, write
        self._paused_s = perf_counter() - begun
        self.finish()
        if shared:
            shared.keep(self._place(), store, name, write.entries)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written in the background, by whichever rank."""
        return self._unpublished is not None

    def finish(self) -> None:
        """Waits until what is being written is whole, and puts it in its place; collective. Raises on every rank what
        kept one from writing its files."""
        if self.store is None or self._unpublished is None:
            return
        (name, write), self._unpublished = self._unpublished, None
        begun, world = perf_counter(), self._world
        failure = write.failure()
        told = world.gather((write.entries, failure and f"rank {world.rank}: {failure}"))
        failures = [words for _, words in told if words]
        if failure:
            raise failure
        if failures:
            write.end(others_s=0)
            raise CheckpointError(f"checkpoint {self.store.path(name)} cannot be written: {'; '.join(failures)}")
        if world.is_master:
            write.publish({file: entry for entries, _ in told for file, entry in entries.items()})
        world.barrier()
        self._tell_stored(name, write, begun)

    def finish_if_written(self) -> bool:
        """As `finish`, where nobody has to wait for it, and whether that was so; collective where something is being
        written."""
        if self._unpublished is None:
            return False
        _, write = self._unpublished
        under_way, failed = self._world.maximum([float(write.is_under_way), float(write.has_failed)])
        if under_way and not failed:
            return False
        self.finish()
        return True

    def finish_alone(self) -> None:
        """As `finish`, where other ranks may be gone, and asks none. What these have not written in time never was."""
        begun, unpublished = perf_counter(), self._unpublished
        if unpublished and self.abandon():
            self._tell_stored(*unpublished, begun)

    def abandon(self) -> bool:
        """As `finish_alone`, and tells nobody, as after a failure; whether the checkpoint is there."""
        unpublished, self._unpublished = self._unpublished, None
        return unpublished is not None and unpublished[1].end()

    def close(self) -> None:
        """Waits until earlier ones are deleted that nobody wants; raises what kept one from it."""
        if self._background:
            self._background.finish_deletions()

    def _tell_stored(self, name: str, write: ForegroundWrite, begun: float) -> None:
        assert self.store is not None
        self.last_path = self.store.path(name)
        with self.store.index.changing():
            self.store.retain("run", [name])
            stored = perf_counter()
            self._plan.fire("on_saved", self._state, self.last_path)
            told = perf_counter()
        self._ledger.charge("save", self._paused_s + stored - begun + perf_counter() - told)
        if write.seconds:
            self._ledger.charge("write", write.seconds)

    def _place(self) -> tuple[int, bool]:
        """What tells one state of the training from others: the iteration, and whether the phase is still under way."""
        return self._state.iteration, self._cursor.stage is Stage.TRAIN

    def _files(
        self, checkpoint: Mapping[str, Any], sharded: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What this rank writes, by file, and what the manifest says of it; copies where training goes on meanwhile.
        Collective."""
        world = self._world
        files, described = {f"rank-{world.rank:04d}.pt": placeholders.encode(self._gather_rank())}, {}
        if world.is_master:
            files |= {f"{key}.pt": value for key, value in checkpoint.items()}
            described = self._described()
        if self._background:
            files, described = self._background.copied((files, described))
        if sharded:
            from orchestrator.checkpoint import sharded_tensors as shards

            files |= shards.files_with_shards(sharded, world.rank, world.world_size)
        return files, described

    def _described(self) -> dict[str, Any]:
        """What the manifest says beside the position."""
        state = self._state
        return {
            "world_size": state.world_size,
            "metrics": state.metrics,
            "main_metric": state.main_metric,
            "evaluations": {label: weights.lender for label, weights in state.evaluations.items()},
            **self._contents.described(),
        }

    def _gather_rank(self) -> dict[str, Any]:
        """What is this rank's own."""
        hooks = {name: hook.rank_state_dict() for name, hook in self._plan.hooks.items()}
        evaluated = [dict(self._cursor.eval_iterations), self._cursor.val_iterations]
        random = {
            "random": storable_random_state(),
            "after_training": self.after_training if self._cursor.stage > Stage.TRAINED else None,
        }
        return {**random, "hooks": hooks, "evaluated": evaluated, **self._contents.per_rank()}

    def restore(self, name: str) -> None:
        """Puts checkpoint `name` back on this rank and fires `on_load`; raises CheckpointError where it does not
        fit."""
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        state, world, contents, load = self._state, self._world, self._contents, partial(self.store.load, name)
        manifest = world.broadcast(partial(self.store.manifest, name))
        files = manifest["files"]
        shared = dict.fromkeys([*(f"{key}.pt" for key in (*contents.files, "hooks")), *shared_files(files)])
        stored = {key: load(file) for file in shared if (key := file.removesuffix(".pt")) not in contents.unread}
        checkpoint = self.store.with_shards(name, stored, contents.mesh)
        contents.restore(name, manifest, checkpoint)
        self._cursor.restore(position_in(manifest))
        rank_file = f"rank-{world.rank:04d}.pt"
        rank_state = load(rank_file) if rank_file in files else {"hooks": {}}
        contents.restore_rank(rank_state, int(manifest["world_size"]), lambda rank: load(f"rank-{rank:04d}.pt"))
        if "evaluated" in rank_state and int(manifest["world_size"]) == world.world_size:
            # A rank may have fewer batches of validation than rank 0, whose count the position has.
            self._cursor.restore_evaluated(*rank_state["evaluated"])
        self._random_state = rank_state.get("random")
        self.after_training = rank_state.get("after_training") or self._random_state
        state.metrics = dict(manifest["metrics"])
        for hook_name, hook in self._plan.hooks.items():
            if hook_name in checkpoint["hooks"]:
                hook.load_state_dict(checkpoint["hooks"][hook_name])
            if rank_state["hooks"].get(hook_name):
                hook.load_rank_state_dict(rank_state["hooks"][hook_name])
        self.last_path, self.last_step = self.store.path(name), state.step
        self._plan.fire("on_load", state, {**checkpoint, "name": name})

    def restore_randomness(self) -> None:
        """Sets the generators to what the restored checkpoint has of them, once: right before training goes on, so that
        nothing in between draws from them."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None

    def rewind_randomness(self) -> None:
        """Set the generators to where the last training phase left them."""
        if self.after_training is not None:
            restore_random_state(self.after_training)
