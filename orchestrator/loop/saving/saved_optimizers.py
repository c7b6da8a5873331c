"""Optimizers in a checkpoint: their states and settings, schedules and scalers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch.optim import Optimizer

from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import join_names
from hooks.position import Position
from hooks.state import State
from orchestrator.disk.checkpoints.manifest import list_optimizers
from orchestrator.errors import CheckpointError
from orchestrator.experiment.optim.learning_rate import Schedule
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.loop.saving.optimizer_state import (
    list_group_parameters,
    load_state,
    load_with_present_settings,
    save_state,
)
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.optimizer_modes import OptimizerModes


class SavedOptimizers:
    """The optimizers of a training in its checkpoints, with their schedulers, scalers and kept
    weights. Used in workers.

    A file has the entries of the only optimizer, or those of several by name.
    """

    def __init__(
        self,
        state: State,
        changes: Changes,
        schedules: Mapping[OptimizerName, Schedule],
        modes: OptimizerModes,
    ) -> None:
        self._state = state
        self._changes = changes
        self._schedules = schedules
        self._modes = modes
        self._schedule_records = {name: schedule.record() for name, schedule in schedules.items()}

    def save(self) -> dict[Any, Any]:
        """Return the states of the optimizers."""
        states: dict[OptimizerName, dict[str, Any]] = {}
        for name, optimizer in self._state.optimizers.items():
            scheduler = self._state.schedulers[name]
            scaler = self._state.scalers[name]
            states[name] = {
                "optimizer": save_state(optimizer),
                "scheduler": scheduler.state_dict() if scheduler else None,
                "scaler": scaler.state_dict() if scaler else None,
                "kept_weights": self._modes.get_kept_weights(name),
                "group_settings": self._changes.numbers.get_groups(name),
                "group_parameters": list_group_parameters(optimizer, self._state.module),
            }
        return states.get(None, states)

    def describe(self) -> dict[str, Any]:
        """Return the settings of the optimizers and their schedules, for the manifest."""
        settings: dict[OptimizerName, dict[str, Any]] = {
            name: {"optimizer": self._changes.numbers.get_written(name), "scheduler": record}
            for name, record in self._schedule_records.items()
        }
        return settings.get(None, {"optimizers": settings})

    def find_rescheduled(self, manifest: Mapping[str, Any]) -> set[OptimizerName]:
        """Return the optimizers whose schedule is not that of a checkpoint.

        Raises CheckpointError if names or types of the optimizers differ.
        """
        saved = list_optimizers(manifest)
        self._check_names_and_types(saved)
        return {
            name
            for name, record in self._schedule_records.items()
            if saved[name]["scheduler"] != record
        }

    def _check_names_and_types(self, saved: Mapping[OptimizerName, Mapping[str, Any]]) -> None:
        if saved.keys() != self._schedules.keys():
            raise CheckpointError(
                f"the checkpoint was made with other optimizers ({_join_names(saved)}), and cannot continue with these"
                f" ({_join_names(self._schedules)})"
            )
        for name, entry in saved.items():
            before = entry["optimizer"]["type"]
            now = self._changes.numbers.get_written(name)["type"]
            if before != now:
                raise CheckpointError(
                    f"the checkpoint was made with the optimizer {before} and cannot continue with {now}"
                )

    def restore(self, loaded: LoadedCheckpoint, rescheduled: Collection[OptimizerName]) -> None:
        """Restore the states of the optimizers; those `rescheduled` keep their new schedules."""
        for name, state in self._list_states(loaded).items():
            self._restore(name, state, loaded.position if name in rescheduled else None)

    def _restore(
        self, name: OptimizerName, saved: Mapping[str, Any], rescheduled: Position | None
    ) -> None:
        """Restore an optimizer, its scheduler and its scaler.

        With `rescheduled`, advance the new schedule to that position instead of restoring the
        checkpoint's.
        """
        optimizer = self._state.optimizers[name]
        scheduler = self._state.schedulers[name]
        scaler = self._state.scalers[name]
        schedule = saved["scheduler"]
        self._check_group_parameters(optimizer, saved["group_parameters"])
        if rescheduled is None:
            load_state(optimizer, saved["optimizer"])
            if scheduler is not None and schedule is not None:
                scheduler.load_state_dict(schedule)
        else:
            default = schedule.get("last_epoch", 0) if schedule else 0
            self._schedules[name].replay(scheduler, rescheduled, default)
            load_with_present_settings(optimizer, saved["optimizer"])
        if scaler is not None and saved["scaler"] is not None:
            scaler.load_state_dict(saved["scaler"])
        self._modes.restore(name, saved["kept_weights"])

    def _check_group_parameters(self, optimizer: Optimizer, saved: Sequence[Sequence[str]]) -> None:
        """Raise CheckpointError unless the groups have the same parameters, because torch loads the
        state of a parameter by its place in them."""
        present = list_group_parameters(optimizer, self._state.module)
        for number, (before, now) in enumerate(zip_longest(saved, present, fillvalue=())):
            moved = [*(set(before) ^ set(now))]
            if list(before) != list(now):
                raise CheckpointError(
                    f"group {number} of the optimizer has other parameters than in the checkpoint"
                    f" ({join_names(sorted(moved) or list(now), 3)}), and the state of one would go"
                    " to another; restore the groups, or start another run with init"
                )

    def _list_states(self, loaded: LoadedCheckpoint) -> Mapping[OptimizerName, Mapping[str, Any]]:
        states = loaded.shared.get("optimizer", {})
        if None in self._state.optimizers and states:
            states = {None: states}
        named: Mapping[OptimizerName, Mapping[str, Any]] = states
        return named

    def restore_settings(
        self, loaded: LoadedCheckpoint, rescheduled: Collection[OptimizerName]
    ) -> None:
        """Continue from the settings of a checkpoint, except with a new schedule."""
        self._changes.restore(
            {
                name: state["group_settings"]
                for name, state in self._list_states(loaded).items()
                if name not in rescheduled
            }
        )

    def restore_hook_fields(self) -> None:
        """Repeat the changes of hooks' fields before a checkpoint."""
        self._changes.restore_fields()


def _join_names(names: Iterable[OptimizerName]) -> str:
    return ", ".join(filter(None, names)) or "a single one"
