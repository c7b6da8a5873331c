"""Saving: what a checkpoint holds, gathered from the parts of the loop and put back into them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hooks.plan import Plan
from hooks.state import State
from orchestrator.checkpoint import shard_placeholders as placeholders
from orchestrator.checkpoint.manifest import position_in
from orchestrator.checkpoint.position import Position
from orchestrator.checkpoint.store import CheckpointStore, shared_files
from orchestrator.config.schedule import Schedule
from orchestrator.errors import CheckpointError
from orchestrator.loop.changes import Changes
from orchestrator.loop.data.phases import Data
from orchestrator.loop.iterations import Iterations
from orchestrator.loop.ledger import Ledger
from orchestrator.loop.randomness import random_state, restore_random_state
from orchestrator.loop.strategy import mesh_of, sharded_model, sharded_optimizer
from orchestrator.loop.training_cursor import TrainingCursor
from orchestrator.loop.world import World

_PARTS = ("model", "optimizer", "hooks")


class Saving:
    """Writes and restores checkpoints, every rank taking part. Worker process.

    `schedules` are what each optimizer's scheduler goes by. `send_artifacts` carries what hooks wrote to where the run lies.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        state: State,
        plan: Plan,
        iterations: Iterations,
        cursor: TrainingCursor,
        data: Data,
        changes: Changes,
        world: World,
        schedules: Mapping[str, Schedule | None],
        ledger: Ledger,
        send_artifacts: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self._state, self._plan, self._world = store, state, plan, world
        self._iterations, self._cursor, self._data, self._changes = iterations, cursor, data, changes
        self._schedules = {name: schedule.record() if schedule else None for name, schedule in schedules.items()}
        self._ledger, self._send_artifacts = ledger, send_artifacts
        self.last_path: str | None = None
        """The newest stored checkpoint."""
        self.last_step = -1
        """The step at which it was made."""
        self._random_state: dict[str, Any] | None = None

    def save(self, name: str) -> str | None:
        """Writes checkpoint `name`; collective. Returns its path, or None where the loop has no store."""
        if self.store is None:
            return None
        state, store, world = self._state, self.store, self._world
        name = world.broadcast(partial(store.free_name, name))
        begun = perf_counter()
        checkpoint = self._gather()
        self._plan.fire("on_save", state, checkpoint)
        sharded: dict[str, Any] = {}
        checkpoint = placeholders.without_shards(checkpoint, sharded)
        # What led to this checkpoint must be on disk before the checkpoint is: a resume counts on it.
        self._ledger.flush()
        self._send_artifacts()
        store.discard_unfinished(name)
        world.barrier()
        files = {f"rank-{world.rank:04d}.pt": self._gather_rank()}
        if world.is_master:
            files |= {f"{key}.pt": value for key, value in checkpoint.items()}
        entries = store.write_files(name, files)
        if sharded:
            from orchestrator.checkpoint import sharded_tensors as shards

            entries |= shards.write(store, name, sharded, world.rank, world.world_size, world.gather)
        written = world.gather(entries)
        if world.is_master:
            entries = {file: entry for one in written for file, entry in one.items()}
            described = {
                "world_size": world.world_size,
                "metrics": state.metrics,
                "data": self._data.sizes(),
                **self._in_force(),
                "split": self._iterations.split,
                "judged_by": state.judged_by,
                "evaluations": {label: weights.lender for label, weights in state.evaluations.items()},
            }
            store.commit(name, entries, self._cursor.position(), described)
        world.barrier()
        self.last_path, self.last_step = store.path(name), state.step
        store.retain("run", [name])
        self._ledger.charge_save(perf_counter() - begun)
        self._plan.fire("on_saved", state, self.last_path)
        return self.last_path

    def _gather(self) -> dict[str, Any]:
        """What all ranks have alike."""
        state = self._state
        optimizers = {
            name: {
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict() if (scheduler := state.schedulers[name]) else None,
                "scaler": scaler.state_dict() if (scaler := state.scalers[name]) else None,
            }
            for name, optimizer in state.optimizers.items()
        }
        return {
            "model": state.module.state_dict(),
            "optimizer": optimizers.get("", optimizers),
            "hooks": {name: hook.state_dict() for name, hook in self._plan.hooks.items()},
        }

    def _in_force(self) -> dict[str, Any]:
        """What the optimizers and their schedulers go by, for the manifest; of several by name."""
        each = {name: {"optimizer": self._changes.in_force(name), "scheduler": record} for name, record in self._schedules.items()}
        return each.get("") or {"optimizers": each}

    def _saved_in_force(self, manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """What those of a checkpoint went by, by name; raises CheckpointError where they are others."""
        saved: dict[str, Mapping[str, Any]] = manifest.get("optimizers") or {"": manifest}
        if saved.keys() != self._schedules.keys():
            before, now = (", ".join(filter(None, names)) or "a single one" for names in (saved, self._schedules))
            raise CheckpointError(f"the checkpoint was made with other optimizers ({before}), and cannot go on with these ({now})")
        for name, one in saved.items():
            self._changes.refuse_another_optimizer(name, one.get("optimizer", {}))
        return saved

    def _gather_rank(self) -> dict[str, Any]:
        """What is this rank's own."""
        return {
            "random": random_state(),
            "buffers": dict(self._state.module.named_buffers()),
            "hooks": {name: hook.rank_state_dict() for name, hook in self._plan.hooks.items()},
            "means": self._iterations.means.state_dict(),
            "data": self._data.train.state_dict(),
            "samples": [self._state.samples, self._state.world_samples],
        }

    def restore(self, name: str) -> None:
        """Puts checkpoint `name` back on this rank and fires `on_load`; raises CheckpointError where it does not fit."""
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        state, hooks, means, world = self._state, self._plan.hooks, self._iterations.means, self._world
        manifest = world.broadcast(partial(self.store.manifest, name))
        files = manifest["files"]
        shared = dict.fromkeys([*(f"{key}.pt" for key in _PARTS), *shared_files(files)])
        stored = {file.removesuffix(".pt"): self.store.load(name, file) for file in shared}
        checkpoint = self.store.with_shards(name, stored, mesh_of(state.module))
        in_force = self._saved_in_force(manifest)
        rescheduled = {one for one, record in self._schedules.items() if in_force[one].get("scheduler", record) != record}
        self._restore_training(name, checkpoint, rescheduled)
        self._iterations.split = manifest.get("split", 1)
        saved_world_size = int(manifest["world_size"])
        position = position_in(manifest)
        self._tell_of_other_data(name, manifest.get("data", {}), position)
        self._cursor.restore(position)
        self._changes.restored({one: {} if one in rescheduled else said.get("optimizer", {}) for one, said in in_force.items()})
        rank_file = f"rank-{world.rank:04d}.pt"
        rank_state = self.store.load(name, rank_file) if rank_file in files else {"hooks": {}, "buffers": {}}
        self._restore_rank(rank_state)
        self._data.train.restore(rank_state.get("data"), saved_world_size)
        if "samples" in rank_state and saved_world_size == world.world_size:
            # Of a stream, ranks may have had batches of other sizes than rank 0, whose counters the position has.
            state.samples, state.world_samples = rank_state["samples"]
        for rank in range(world.rank + world.world_size, saved_world_size, world.world_size):
            # The sums of ranks that are no more: the means of the phase under way are of their samples too.
            means.include(self.store.load(name, f"rank-{rank:04d}.pt")["means"])
        state.metrics = dict(manifest["metrics"])
        for hook_name, hook in hooks.items():
            if hook_name in checkpoint["hooks"]:
                hook.load_state_dict(checkpoint["hooks"][hook_name])
            if rank_state["hooks"].get(hook_name):
                hook.load_rank_state_dict(rank_state["hooks"][hook_name])
        self.last_path, self.last_step = self.store.path(name), state.step
        self._plan.fire("on_load", state, {**checkpoint, "name": name})

    def _tell_of_other_data(self, name: str, before: Mapping[str, int], position: Position) -> None:
        """Says where a phase has other samples than when the checkpoint was made; raises CheckpointError where training stands
        past the last of them."""
        for phase, now in self._data.sizes().items():
            then = before.get(phase, now)
            if then == now:
                continue
            words = f"{phase} had {then:,} samples when checkpoint '{name}' was made, and has {now:,} now"
            within = phase == "train" and position.phase_iteration > 0
            if within and position.offset >= now:
                raise CheckpointError(
                    f"{words}: it stands in the middle of an epoch, after {position.offset:,} of them. Put the others back, or go on from a "
                    "checkpoint at the end of an epoch (run RUN@NAME begins a run of its own there)"
                )
            effect = "; in what is left of this epoch some may come again, or not at all" if within else ""
            if self._world.is_master:
                self._state.show(words + effect)

    def _restore_training(self, name: str, checkpoint: dict[str, Any], rescheduled: Collection[str]) -> None:
        state, kept = self._state, checkpoint["optimizer"]
        try:
            state.module.load_state_dict(sharded_model(checkpoint["model"], state.module))
            for one in state.optimizers:
                self._restore_optimizer(one, kept[one] if one else kept, one in rescheduled)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = f"its optimizer's state has no {error}, so it is of another optimizer" if isinstance(error, KeyError) else error
            raise CheckpointError(f"checkpoint '{name}' does not fit this experiment: {reason}") from error

    def _restore_optimizer(self, name: str, kept: Mapping[str, Any], rescheduled: bool) -> None:
        state, saved, scheduled = self._state, kept["optimizer"], kept["scheduler"]
        optimizer, scheduler, scaler = state.optimizers[name], state.schedulers[name], state.scalers[name]
        if rescheduled:
            advance(scheduler, scheduled["last_epoch"] if scheduled else 0)
            saved = _with_settings_of(optimizer, saved)
        optimizer.load_state_dict(sharded_optimizer(saved, optimizer))
        if scheduler is not None and scheduled is not None and not rescheduled:
            scheduler.load_state_dict(scheduled)
        if scaler is not None and kept["scaler"] is not None:
            scaler.load_state_dict(kept["scaler"])

    def _restore_rank(self, rank_state: dict[str, Any]) -> None:
        buffers = dict(self._state.module.named_buffers())
        for name, value in rank_state["buffers"].items():
            if name in buffers:
                buffers[name].copy_(value)
        self._iterations.means.include(rank_state.get("means", {}))
        self._random_state = rank_state.get("random")

    def restore_randomness(self) -> None:
        """Sets the generators to what the restored checkpoint has of them, once: right before training goes on, so that
        nothing in between draws from them."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None


def advance(scheduler: Any, steps: int) -> None:
    """Takes a new scheduler, and with it its optimizer's learning rates, to where they are after so many steps; one that steps
    by a metric begins anew. Raises ValueError where the schedule is over before."""
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        for _ in range(steps):
            scheduler.step()


def _with_settings_of(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's saved state with the settings, such as the learning rates, that this optimizer has now."""
    present = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {**saved, "param_groups": [{**group, **now} for group, now in zip(saved["param_groups"], present, strict=True)]}
