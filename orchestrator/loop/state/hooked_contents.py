"""What a checkpoint holds of what the hooked loop trains: model, optimizers, the place in the data, the means under
way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from hooks.state import State
from orchestrator.checkpoint.manifest import position_in
from orchestrator.checkpoint.position import Position
from orchestrator.config.optim.schedule import Schedule
from orchestrator.errors import CheckpointError
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.strategy import mesh_of, sharded_model, sharded_optimizer
from orchestrator.loop.state.optimizer_state import load_state
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.iterations import Iterations


class HookedContents:
    """Takes down what the loop trains, and puts it back, on each rank. Worker process. `schedules` are what each
    optimizer's scheduler goes by."""

    files: tuple[str, ...] = ("model", "optimizer")
    unread: tuple[str, ...] = ()

    def __init__(
        self,
        state: State,
        iterations: Iterations,
        data: Data,
        changes: Changes,
        schedules: Mapping[str, Schedule | None],
    ) -> None:
        self._state, self._iterations, self._data, self._changes = state, iterations, data, changes
        self._schedules = {name: schedule.record() if schedule else None for name, schedule in schedules.items()}

    @property
    def mesh(self) -> Any:
        """The mesh over which ranks share out the model; None where they do not."""
        return mesh_of(self._state.module)

    def shared(self) -> dict[str, Any]:
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
        return {"model": state.module.state_dict(), "optimizer": optimizers.get("", optimizers)}

    def per_rank(self) -> dict[str, Any]:
        """What is this rank's own."""
        return {
            "buffers": dict(self._state.module.named_buffers()),
            "means": self._iterations.means.state_dict(),
            "data": self._data.train.state_dict(),
            "samples": [self._state.samples, self._state.world_samples],
            "task": self._iterations.task.state_dict(),
        }

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "data": self._data.sizes(),
            "phases": [*self._data.phases],
            **self._in_force(),
            "microbatches": self._iterations.microbatches,
        }

    def restore(self, name: str, manifest: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        """Puts back what all ranks have alike; raises CheckpointError where it does not fit."""
        self._saved = in_force = self._saved_in_force(manifest)
        position = position_in(manifest)
        self._rescheduled = {one for one, record in self._schedules.items() if in_force[one]["scheduler"] != record}
        self._restore_training(name, checkpoint, dict.fromkeys(self._rescheduled, position))
        self._iterations.microbatches = manifest.get("microbatches", 1)
        self._tell_of_other_data(name, manifest.get("data", {}), position)

    def restore_rank(
        self, rank_state: Mapping[str, Any], saved_world_size: int, other: Callable[[int], Mapping[str, Any]]
    ) -> None:
        """Puts back this rank's own, once the run stands where the checkpoint does; `other` gives that of another
        rank."""
        state, rescheduled = self._state, self._rescheduled
        self._changes.restored(
            {one: {} if one in rescheduled else said["optimizer"] for one, said in self._saved.items()}
        )
        self._restore_buffers(rank_state.get("buffers", {}))
        self._restore_task(rank_state if saved_world_size == state.world_size else other(0), saved_world_size)
        self._iterations.means.include(rank_state.get("means", {}))
        self._data.train.restore(rank_state.get("data"), saved_world_size)
        if self._data.train.is_over:
            state.max_steps = state.step
        if "samples" in rank_state and saved_world_size == state.world_size:
            # Of a stream, ranks may have had batches of other sizes than rank 0, whose counters the position has.
            state.samples, state.world_samples = rank_state["samples"]
        for rank in range(state.rank + state.world_size, saved_world_size, state.world_size):
            # The sums of ranks that are no more: the means of the phase under way are of their samples too.
            self._iterations.means.include(other(rank)["means"])

    def _restore_task(self, rank_state: Mapping[str, Any], saved_world_size: int) -> None:
        saved = rank_state["task"]
        if not saved:
            return
        if saved_world_size != self._state.world_size:
            raise CheckpointError(
                f"the checkpoint holds what the task kept on each of {saved_world_size} ranks ({', '.join(saved)}), and"
                f" cannot go on with {self._state.world_size}; write workers.count: {saved_world_size}"
            )
        self._iterations.task.load_state_dict(saved)

    def _in_force(self) -> dict[str, Any]:
        """What the optimizers and their schedulers go by, for the manifest; of several by name."""
        each = {
            name: {"optimizer": self._changes.in_force(name), "scheduler": record}
            for name, record in self._schedules.items()
        }
        return each.get("") or {"optimizers": each}

    def _saved_in_force(self, manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """What those of a checkpoint went by, by name; raises CheckpointError where they are others."""
        saved: dict[str, Mapping[str, Any]] = manifest.get("optimizers") or {"": manifest}
        if saved.keys() != self._schedules.keys():
            before, now = (", ".join(filter(None, names)) or "a single one" for names in (saved, self._schedules))
            raise CheckpointError(
                f"the checkpoint was made with other optimizers ({before}), and cannot go on with these ({now})"
            )
        for name, one in saved.items():
            self._changes.refuse_another_optimizer(name, one["optimizer"])
        return saved

    def _tell_of_other_data(self, name: str, before: Mapping[str, int], position: Position) -> None:
        """Says where a phase has other samples than when the checkpoint was made; raises CheckpointError where training
        stands past the last of them."""
        for phase, now in self._data.sizes().items():
            then = before.get(phase, now)
            if then == now:
                continue
            words = f"{phase} had {then:,} samples when checkpoint '{name}' was made, and has {now:,} now"
            within = phase == "train" and position.phase_iteration > 0
            if within and position.offset >= now:
                raise CheckpointError(
                    f"{words}: it stands in the middle of an epoch, after {position.offset:,} of them. Put the others"
                    " back, or go on from a checkpoint at the end of an epoch (run RUN@NAME begins a run of its own"
                    " there)"
                )
            effect = "; in what is left of this epoch some may come again, or not at all" if within else ""
            if self._state.is_master:
                self._state.show(words + effect)

    def _restore_training(self, name: str, checkpoint: dict[str, Any], rescheduled: Mapping[str, Position]) -> None:
        state, kept = self._state, checkpoint.get("optimizer", {})
        try:
            state.module.load_state_dict(sharded_model(checkpoint["model"], state.module))
            for one in state.optimizers if kept else ():
                self._restore_optimizer(one, kept[one] if one else kept, rescheduled.get(one))
        except (RuntimeError, ValueError, KeyError) as error:
            reason = (
                f"its optimizer's state has no {error}, so it is of another optimizer"
                if isinstance(error, KeyError)
                else error
            )
            raise CheckpointError(f"checkpoint '{name}' does not fit this experiment: {reason}") from error

    def _restore_optimizer(self, name: str, kept: Mapping[str, Any], rescheduled: Position | None) -> None:
        """Put back an optimizer and what goes with it. Where its schedule is not the checkpoint's, take this to the
        run's position."""
        state, saved, scheduled = self._state, kept["optimizer"], kept["scheduler"]
        optimizer, scheduler, scaler = state.optimizers[name], state.schedulers[name], state.scalers[name]
        if rescheduled is not None:
            self._changes.replay(name, rescheduled, default=scheduled.get("last_epoch", 0) if scheduled else 0)
            saved = _with_settings_of(optimizer, saved)
        load_state(optimizer, sharded_optimizer(saved, optimizer))
        if scheduler is not None and scheduled is not None and rescheduled is None:
            scheduler.load_state_dict(scheduled)
        if scaler is not None and kept["scaler"] is not None:
            scaler.load_state_dict(kept["scaler"])

    def _restore_buffers(self, saved: Mapping[str, Any]) -> None:
        buffers = dict(self._state.module.named_buffers())
        for name, value in saved.items():
            if name in buffers:
                buffers[name].copy_(value)


class WeightsAlone(HookedContents):
    """What of it is put back where a checkpoint is measured, and not gone on with, on any number of ranks: weights and
    buffers, and what hooks had been changed to."""

    files = ("model",)
    unread = ("optimizer",)

    def restore(self, name: str, manifest: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        self._restore_training(name, checkpoint, {})

    def restore_rank(
        self, rank_state: Mapping[str, Any], saved_world_size: int, other: Callable[[int], Mapping[str, Any]]
    ) -> None:
        self._changes.restored({one: {} for one in self._schedules})
        self._restore_buffers(rank_state.get("buffers", {}))


def _with_settings_of(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's saved state with the settings, such as the learning rates, that this optimizer has now."""
    present = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {
        **saved,
        "param_groups": [{**group, **now} for group, now in zip(saved["param_groups"], present, strict=True)],
    }
