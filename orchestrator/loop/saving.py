"""Saving: gathers what a checkpoint holds from the loop, and puts it back."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from orchestrator.checkpoint import marks
from orchestrator.checkpoint.position import Position, Stage
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.randomness import random_state
from orchestrator.loop.strategy import mesh_of, sharded_model, sharded_optimizer

if TYPE_CHECKING:
    from orchestrator.loop.loop import Loop

_OWN = ("model", "optimizer", "hooks")


class Saving:
    """Writes and restores checkpoints of a loop, every rank taking part. Worker process."""

    def __init__(self, loop: Loop, store: CheckpointStore | None) -> None:
        self.loop, self.store = loop, store
        self.random_state: dict[str, Any] | None = None
        """What the generators must be set to before training goes on."""
        self.last_path: str | None = None
        self.last_step = -1
        self._seconds: list[float] = []
        self.offset_shift = 0
        """Samples of the present epoch consumed before `phase_iteration` began to count: not 0 after a change of ranks."""

    def save(self, name: str) -> str | None:
        """Writes checkpoint `name`; collective. Returns its path, or None where the loop has no store."""
        if self.store is None:
            return None
        loop, state, store = self.loop, self.loop.state, self.store
        name = store.free_name(name)
        begun = perf_counter()
        checkpoint = self._gather()
        loop.plan.fire("on_save", state, checkpoint)
        sharded: dict[str, Any] = {}
        checkpoint = marks.marked(checkpoint, sharded)
        # What led to this checkpoint must be on disk before the checkpoint is: a resume counts on it.
        loop.record_costs()
        loop.recorder.sync()
        store.discard_unfinished(name)
        loop.world.barrier()
        files = {f"rank-{loop.world.rank:04d}.pt": self._gather_rank()}
        if loop.world.is_master:
            files |= {f"{key}.pt": value for key, value in checkpoint.items()}
        entries = store.write_files(name, files)
        if sharded:
            entries |= self._write_shards(name, sharded)
        written = loop.world.gather(entries)
        if loop.world.is_master:
            entries = {file: entry for one in written for file, entry in one.items()}
            about = {"world_size": loop.world.world_size, "metrics": state.metrics, "optimizer": loop.changes.optimizer}
            store.commit(name, entries, self.position(), about)
        loop.world.barrier()
        self.last_path, self.last_step = store.path(name), state.step
        store.retain("run", [name])
        self._seconds.append(perf_counter() - begun)
        loop.plan.fire("on_saved", state, self.last_path)
        return self.last_path

    def _write_shards(self, name: str, sharded: dict[str, Any]) -> dict[str, dict[str, Any]]:
        from orchestrator.checkpoint import shards

        assert self.store is not None
        return shards.write(self.store, name, sharded, self.loop.world.rank, self.loop.world.group)

    def drain_costs(self) -> list[dict[str, Any]]:
        """What saving cost since the last drain, as a row of the hooks' ledger."""
        seconds, self._seconds = self._seconds, []
        if not seconds:
            return []
        return [{"hook": "(loop)", "event": "save", "calls": len(seconds), "seconds": sum(seconds)}]

    def position(self) -> Position:
        """Where the loop stands."""
        state = self.loop.state
        return Position(
            epoch=state.epoch,
            step=state.step,
            iteration=state.iteration,
            samples=state.samples,
            offset=self.loop.consumed() if state.phase_iteration else 0,
            phase_iteration=state.phase_iteration,
            eval_iterations=self.loop.eval_iterations,
            stage=self.loop.stage,
            stepped=state.stepped,
        )

    def _gather(self) -> dict[str, Any]:
        state = self.loop.state
        assert state.optimizer is not None
        return {
            "model": state.module.state_dict(),
            "optimizer": {
                "optimizer": state.optimizer.state_dict(),
                "scheduler": state.scheduler.state_dict() if state.scheduler else None,
                "scaler": state.scaler.state_dict() if state.scaler else None,
            },
            "hooks": {name: hook.state_dict() for name, hook in self.loop.plan.hooks.items()},
        }

    def _gather_rank(self) -> dict[str, Any]:
        return {
            "random": random_state(),
            "buffers": dict(self.loop.state.module.named_buffers()),
            "hooks": {name: hook.rank_state_dict() for name, hook in self.loop.plan.hooks.items()},
            "means": self.loop.iterations.means.state_dict(),
        }

    def restore(self, name: str) -> None:
        """Puts checkpoint `name` back on this rank and fires `on_load`; raises CheckpointError where it does not fit."""
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        loop, state = self.loop, self.loop.state
        files = self.store.files(name)
        shared = dict.fromkeys([*(f"{key}.pt" for key in _OWN), *self.store.shared_files(name)])
        checkpoint = self._with_shards(name, {file.removesuffix(".pt"): self.store.load(name, file) for file in shared})
        self._restore_training(name, checkpoint)
        manifest = self.store.manifest(name)
        self._restore_position(self.store.position(name), int(manifest["world_size"]))
        loop.changes.restored(manifest.get("optimizer", {}))
        rank_file = f"rank-{loop.world.rank:04d}.pt"
        rank_state = self.store.load(name, rank_file) if rank_file in files else {"hooks": {}, "buffers": {}}
        self._restore_rank(rank_state)
        for rank in range(loop.world.rank + loop.world.world_size, int(manifest["world_size"]), loop.world.world_size):
            # The sums of ranks that are no more: the means of the phase under way are of their samples too.
            loop.iterations.means.include(self.store.load(name, f"rank-{rank:04d}.pt")["means"])
        state.metrics = dict(manifest["metrics"])
        for hook_name, hook in loop.plan.hooks.items():
            if hook_name in checkpoint["hooks"]:
                hook.load_state_dict(checkpoint["hooks"][hook_name])
            if rank_state["hooks"].get(hook_name):
                hook.load_rank_state_dict(rank_state["hooks"][hook_name])
        self.last_path, self.last_step = self.store.path(name), state.step
        loop.plan.fire("on_load", state, {**checkpoint, "name": name})

    def _with_shards(self, name: str, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint with its sharded tensors: this rank's shards of them, or the whole where this run shards nothing."""
        keys = marks.keys_in(checkpoint)
        if not keys:
            return checkpoint
        from orchestrator.checkpoint import shards

        assert self.store is not None
        mesh = mesh_of(self.loop.state.module)
        filled: dict[str, Any] = marks.filled(checkpoint, shards.read(self.store, name, keys, mesh, self.loop.world.group))
        return filled

    def _restore_training(self, name: str, checkpoint: dict[str, Any]) -> None:
        state = self.loop.state
        assert state.optimizer is not None
        try:
            state.module.load_state_dict(sharded_model(checkpoint["model"], state.module))
            state.optimizer.load_state_dict(sharded_optimizer(checkpoint["optimizer"]["optimizer"], state.optimizer))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"checkpoint '{name}' does not fit this experiment: {error}") from error
        if state.scheduler is not None and checkpoint["optimizer"]["scheduler"] is not None:
            state.scheduler.load_state_dict(checkpoint["optimizer"]["scheduler"])
        if state.scaler is not None and checkpoint["optimizer"]["scaler"] is not None:
            state.scaler.load_state_dict(checkpoint["optimizer"]["scaler"])

    def _restore_position(self, position: Position, saved_world_size: int) -> None:
        loop, state = self.loop, self.loop.state
        state.epoch, state.step, state.iteration = position.epoch, position.step, position.iteration
        state.samples, state.phase_iteration = position.samples, position.phase_iteration
        state.epoch_completed = position.stage is not Stage.TRAIN and position.phase_iteration == 0
        state.stepped = position.stage is not Stage.TRAIN and position.stepped
        state.phase = "train"
        loop.eval_iterations, loop.stage = position.eval_iterations, position.stage
        if saved_world_size != loop.world.world_size:
            loop.continue_epoch_with_other_ranks(position)

    def _restore_rank(self, rank_state: dict[str, Any]) -> None:
        buffers = dict(self.loop.state.module.named_buffers())
        for name, value in rank_state["buffers"].items():
            if name in buffers:
                buffers[name].copy_(value)
        self.loop.iterations.means.load_state_dict(rank_state.get("means", {}))
        self.random_state = rank_state.get("random")

