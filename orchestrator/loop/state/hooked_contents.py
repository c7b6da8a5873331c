"""Checkpoint contents of the hooked loop: model, optimizers, position in the data, running
means."""

from collections.abc import Mapping
from typing import Any

from hooks.model.buffers import describe_buffers, restore_buffers
from hooks.position import Position
from hooks.state import State
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.experiment.optim.schedule import Schedule
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.initial_weights import describe_mismatches
from orchestrator.loop.model.strategy import mesh_of, sharded_model
from orchestrator.loop.state.contents import LoadedCheckpoint
from orchestrator.loop.state.optimizer_state import list_counters, load_state, save_state
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.metrics import Means
from orchestrator.loop.step.optimizer_modes import OptimizerModes


class HookedContents:
    """Checkpoint contents of a hooked loop on each rank. Used in workers."""

    files: tuple[str, ...] = ("model", "optimizer")
    unread: tuple[str, ...] = ()

    def __init__(
        self,
        state: State,
        iterations: IterationRunner,
        data: Data,
        changes: Changes,
        schedules: Mapping[str, Schedule | None],
        modes: OptimizerModes,
    ) -> None:
        self._modes = modes
        self._state, self._iterations, self._data, self._changes = state, iterations, data, changes
        self._schedules = {
            name: schedule.record() if schedule else None for name, schedule in schedules.items()
        }
        self._buffers_at_start = describe_buffers(state.module)

    @property
    def mesh(self) -> Any:
        return mesh_of(self._state.module)

    def shared(self) -> dict[str, Any]:
        state = self._state
        optimizers = {
            name: {
                "optimizer": save_state(optimizer),
                "scheduler": scheduler.state_dict()
                if (scheduler := state.schedulers[name])
                else None,
                "scaler": scaler.state_dict() if (scaler := state.scalers[name]) else None,
                "kept_weights": self._modes.get_kept_weights(name),
            }
            for name, optimizer in state.optimizers.items()
        }
        return {"model": state.module.state_dict(), "optimizer": optimizers.get("", optimizers)}

    def per_rank(self) -> dict[str, Any]:
        return {
            "buffers": dict(self._state.module.named_buffers()),
            "remade_buffers": self._list_remade_buffers(),
            "means": self._iterations.means.state_dict(),
            "data": self._data.train.state_dict(),
            "task": self._iterations.task.state_dict(),
        }

    def details(self) -> dict[str, Any]:
        optimizers = {
            name: {"optimizer": self._changes.current_settings(name), "scheduler": record}
            for name, record in self._schedules.items()
        }
        return {
            "data": self._data.sizes(),
            "phases": [*self._data.phases],
            **(optimizers.get("") or {"optimizers": optimizers}),
            "microbatches": self._iterations.microbatches,
            "remade_buffers": self._list_remade_buffers(),
        }

    def _list_remade_buffers(self) -> list[str]:
        """Return the buffers that did not exist when the model was built, or had another shape or
        dtype."""
        before = self._buffers_at_start
        return [
            name
            for name, now in describe_buffers(self._state.module).items()
            if before.get(name) != now
        ]

    def restore(self, loaded: LoadedCheckpoint) -> None:
        state, manifest, rank_state = self._state, loaded.manifest, loaded.rank_state
        position, saved = parse_position(manifest["position"]), self._saved_optimizers(manifest)
        rescheduled = {
            key for key, record in self._schedules.items() if saved[key]["scheduler"] != record
        }
        self._restore_training(loaded, dict.fromkeys(rescheduled, position))
        self._iterations.microbatches = manifest.get("microbatches", 1)
        self._check_data(loaded.name, manifest.get("data", {}), position)
        self._changes.restore(
            {key: {} if key in rescheduled else entry["optimizer"] for key, entry in saved.items()}
        )
        self._restore_buffers(loaded)
        if task_state := loaded.read_per_rank("task", state.world_size):
            self._iterations.task.load_state_dict(task_state)
        means = self._iterations.means = Means()
        means.include(rank_state.get("means", {}))
        self._data.train.restore(rank_state.get("data"), loaded.world_size)
        if self._data.train.is_exhausted:
            state.max_steps = state.step
        for rank in range(state.rank + state.world_size, loaded.world_size, state.world_size):
            # The means of the current phase include the samples of ranks that no longer exist.
            means.include(loaded.load_rank_state(rank)["means"])

    def _saved_optimizers(self, manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return the checkpoint's optimizer entries by name; raises CheckpointError if names or
        types differ."""
        saved: dict[str, Mapping[str, Any]] = manifest.get("optimizers") or {"": manifest}
        if saved.keys() != self._schedules.keys():
            before, now = (
                ", ".join(filter(None, names)) or "a single one"
                for names in (saved, self._schedules)
            )
            raise CheckpointError(
                f"the checkpoint was made with other optimizers ({before}), and cannot continue with these ({now})"
            )
        for name, entry in saved.items():
            before, now = entry["optimizer"]["type"], self._changes.current_settings(name)["type"]
            if before != now:
                raise CheckpointError(
                    f"the checkpoint was made with the optimizer {before} and cannot continue with {now}"
                )
        return saved

    def _check_data(self, name: str, before: Mapping[str, int], position: Position) -> None:
        """Print a line for each phase whose number of samples has changed.

        Raises CheckpointError if the position in the epoch is beyond the last sample.
        """
        for phase, now in self._data.sizes().items():
            then = before.get(phase, now)
            if then == now:
                continue
            text = f"{phase} had {then:,} samples when checkpoint '{name}' was made, and has {now:,} now"
            is_within_epoch = phase == "train" and position.phase_iteration > 0
            if is_within_epoch and position.offset >= now:
                raise CheckpointError(
                    f"{text} within an epoch, after {position.offset:,} of them; restore the data, or start a new run"
                    " from a checkpoint at the end of an epoch"
                )
            effect = "; the rest of this epoch may repeat or miss some" if is_within_epoch else ""
            if self._state.is_master:
                self._state.show(text + effect)

    def _restore_training(
        self, loaded: LoadedCheckpoint, rescheduled: Mapping[str, Position]
    ) -> None:
        state, saved, weights = (
            self._state,
            loaded.shared.get("optimizer", {}),
            loaded.shared["model"],
        )
        remade = loaded.manifest.get("remade_buffers", ())
        restore_buffers(
            state.module,
            {name: weights[name] for name in remade if name in weights},
            remade,
            weights,
        )
        try:
            state.module.load_state_dict(sharded_model(weights, state.module))
            for key in state.optimizers if saved else ():
                self._restore_optimizer(key, saved[key] if key else saved, rescheduled.get(key))
        except (RuntimeError, ValueError, KeyError) as error:
            model = state.module.state_dict()
            reasons = describe_mismatches(weights, model, model) or [
                f"its optimizer's state has no {error}"
                if isinstance(error, KeyError)
                else str(error)
            ]
            raise UsageError(
                f"checkpoint '{loaded.name}' does not fit this experiment: {'; '.join(reasons)}. Undo the change, or"
                " start another run with init.from"
            ) from error

    def _restore_optimizer(
        self, name: str, saved: Mapping[str, Any], rescheduled: Position | None
    ) -> None:
        """Restore an optimizer, its scheduler and its scaler.

        With `rescheduled`, advance the new schedule to that position instead of restoring the
        checkpoint's.
        """
        state, optimizer_state, schedule = self._state, saved["optimizer"], saved["scheduler"]
        optimizer, scheduler, scaler = (
            state.optimizers[name],
            state.schedulers[name],
            state.scalers[name],
        )
        if rescheduled is not None:
            self._changes.replay(
                name, rescheduled, default=schedule.get("last_epoch", 0) if schedule else 0
            )
            groups = zip(optimizer_state["param_groups"], optimizer.param_groups, strict=True)
            kept = {"params", *list_counters(optimizer)}
            settings = [
                {**group, **now, **{key: group[key] for key in kept}} for group, now in groups
            ]
            optimizer_state = {**optimizer_state, "param_groups": settings}
        load_state(optimizer, optimizer_state)
        if scheduler is not None and schedule is not None and rescheduled is None:
            scheduler.load_state_dict(schedule)
        if scaler is not None and saved["scaler"] is not None:
            scaler.load_state_dict(saved["scaler"])
        self._modes.restore(name, saved["kept_weights"])

    def _restore_buffers(self, loaded: LoadedCheckpoint) -> None:
        saved = loaded.rank_state.get("buffers", {})
        remade = loaded.rank_state.get("remade_buffers", ())
        restore_buffers(self._state.module, saved, remade, persistent=loaded.shared["model"])


class EvaluationContents(HookedContents):
    """Contents that an evaluation restores, on any number of ranks: weights, buffers and changed
    hook fields."""

    files = ("model",)
    unread = ("optimizer",)

    def restore(self, loaded: LoadedCheckpoint) -> None:
        self._restore_training(loaded, {})
        self._changes.restore({name: {} for name in self._schedules})
        self._restore_buffers(loaded)
