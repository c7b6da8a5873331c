"""Checkpoint contents of the hooked loop: model, optimizers, position in the data, means."""

from collections.abc import Collection
from typing import Any

from hooks.model.buffers import describe_buffers, restore_buffers
from hooks.optimizer_name import OptimizerName
from hooks.state import State
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.frozen_weights import RECORD, FrozenWeights, add_frozen_weights
from orchestrator.loop.model.gradient_order import GradientOrder
from orchestrator.loop.model.initial_weights import describe_mismatches
from orchestrator.loop.model.sharded_modules import get_mesh, shard_model_state
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.loop.saving.saved_optimizers import SavedOptimizers
from orchestrator.loop.step.means import Means
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.units import format_count


class HookedContents:
    """Checkpoint contents of a hooked loop on each rank. Used in workers."""

    files: tuple[str, ...] = ("model", "optimizer")
    unread: tuple[str, ...] = ()

    def __init__(
        self,
        state: State,
        iterations: TrainingRunner,
        data: Data,
        optimizers: SavedOptimizers,
        frozen: FrozenWeights | None = None,
    ) -> None:
        self._state = state
        self._iterations = iterations
        self._data = data
        self._optimizers = optimizers
        self._frozen = frozen
        """Weights that checkpoints leave out; None if they hold all."""
        self._buffers_at_start = describe_buffers(state.module)
        self._trained_at_start = self._find_trained()
        self._gradient_order = GradientOrder(state.model)

    @property
    def mesh(self) -> Any:
        return get_mesh(self._state.module)

    def collect_shared(self) -> dict[str, Any]:
        return {
            "model": self._state.module.state_dict(),
            "optimizer": self._optimizers.save(),
        }

    def trim(self, content: dict[str, Any]) -> None:
        if self._frozen and self._state.is_master:
            self._frozen.leave_out(content)

    def collect_per_rank(self) -> dict[str, Any]:
        return {
            "buffers": dict(self._state.module.named_buffers()),
            "remade_buffers": self._list_remade_buffers(),
            "means": self._iterations.metrics.means.state_dict(),
            "data": self._data.train.state_dict(),
            "task": self._iterations.task.state_dict(),
        }

    def make_details(self) -> dict[str, Any]:
        return {
            "data": self._data.sizes(),
            "phases": [*self._data.phases],
            "loader_workers": self._data.train.loader_workers,
            **self._optimizers.describe(),
            "microbatches": self._iterations.microbatches,
            "gradient_order": self._gradient_order.save(),
            "remade_buffers": self._list_remade_buffers(),
            "requires_grad": self._find_changed_trained(),
            **({RECORD: self._frozen.describe()} if self._frozen else {}),
        }

    def _find_trained(self) -> dict[str, bool]:
        """Return for each parameter whether it is trained, rather than frozen."""
        return {name: value.requires_grad for name, value in self._state.module.named_parameters()}

    def _find_changed_trained(self) -> dict[str, bool]:
        """Return the parameters that training has frozen or unfrozen since the start. All others
        follow the task, also if it is changed before a resume."""
        before = self._trained_at_start
        now = self._find_trained()
        return {name: now[name] for name in now if now[name] != before.get(name)}

    def _list_remade_buffers(self) -> list[str]:
        """Return the buffers that were made, or changed in shape or dtype, since the start."""
        before = self._buffers_at_start
        now = describe_buffers(self._state.module)
        return [name for name in now if now[name] != before.get(name)]

    def restore(self, loaded: LoadedCheckpoint) -> None:
        manifest = loaded.manifest
        rescheduled = self._optimizers.find_rescheduled(manifest)
        self._restore_training(loaded, rescheduled)
        self._gradient_order.restore(manifest.get("gradient_order", ()))
        for name, is_trained in manifest.get("requires_grad", {}).items():
            self._state.module.get_parameter(name).requires_grad_(is_trained)
        self._compare_data(loaded)
        self._optimizers.restore_settings(loaded, rescheduled)
        self._restore_buffers(loaded)

        self._iterations.microbatches = manifest.get("microbatches", 1)
        task_state = loaded.read_per_rank("task", self._state.world_size)
        if task_state:
            self._iterations.task.load_state_dict(task_state)
        self._restore_means(loaded)

        self._data.train.restore(loaded.rank_state.get("data"), loaded.world_size)
        self._state.ended_early = self._data.train.is_exhausted

    def _restore_means(self, loaded: LoadedCheckpoint) -> None:
        state = self._state
        means = Means()
        means.include(loaded.rank_state.get("means", {}))
        for rank in range(state.rank + state.world_size, loaded.world_size, state.world_size):
            # The means of the current phase include the samples of ranks that no longer exist.
            means.include(loaded.load_rank_state(rank)["means"])
        self._iterations.metrics.means = means

    def _compare_data(self, loaded: LoadedCheckpoint) -> None:
        """Show a line for each phase whose number of samples has changed.

        Raises CheckpointError if the position in the epoch is beyond the last sample.
        """
        position = loaded.position
        sizes_before = loaded.manifest.get("data", {})
        for phase, now in self._data.sizes().items():
            before = sizes_before.get(phase, now)
            if before == now:
                continue

            samples = format_count(before, "sample")
            message = f"{phase} had {samples} when checkpoint '{loaded.name}' was made, and has {now:,} now"
            if phase == "train" and position.phase_iteration > 0:
                if position.offset >= now:
                    raise CheckpointError(
                        f"{message} within an epoch, after {position.offset:,} of them; restore the data, or start a"
                        " new run from a checkpoint at the end of an epoch"
                    )
                message += "; the rest of this epoch may repeat or miss some"
            if self._state.is_master:
                self._state.show(message)

    def _restore_training(
        self, loaded: LoadedCheckpoint, rescheduled: Collection[OptimizerName]
    ) -> None:
        """Restore the model, the optimizers, their schedules and their scalers.

        The optimizers `rescheduled` keep their new schedules. Raises UsageError if anything does
        not fit.
        """
        module = self._state.module
        self._add_frozen_weights(loaded)
        weights = loaded.shared["model"]
        remade = loaded.manifest.get("remade_buffers", ())
        remade_weights = {name: weights[name] for name in remade if name in weights}
        restore_buffers(module, remade_weights, remade, persistent=weights)

        try:
            module.load_state_dict(shard_model_state(weights, module))
        except KeyError as error:
            reason = f"the model failed in load_state_dict: KeyError: {error}"
            raise self._make_misfit_error(loaded, reason) from error
        except (RuntimeError, ValueError) as error:
            raise self._make_misfit_error(loaded, str(error)) from error

        try:
            self._optimizers.restore(loaded, rescheduled)
        except KeyError as error:
            reason = f"its optimizer's state has no {error}"
            raise self._make_misfit_error(loaded, reason) from error
        except (RuntimeError, ValueError) as error:
            raise self._make_misfit_error(loaded, str(error)) from error

    def _make_misfit_error(self, loaded: LoadedCheckpoint, reason: str) -> UsageError:
        """Return the error of a checkpoint that cannot be restored; a mismatch of the weights
        explains it better than `reason`."""
        model = self._state.module.state_dict()
        reasons = describe_mismatches(loaded.shared["model"], model, model) or [reason]
        return UsageError(
            f"checkpoint '{loaded.name}' does not fit this experiment: {'; '.join(reasons)}. Undo the change, or"
            " start another run with init.from"
        )

    def _add_frozen_weights(self, loaded: LoadedCheckpoint) -> None:
        record = loaded.manifest.get(RECORD)
        if self._frozen:
            self._frozen.continue_from(record, loaded.name)
        if record is None:
            return
        try:
            add_frozen_weights(loaded.shared, record, self._state.module, loaded.name)
        except CheckpointError as error:
            raise UsageError(str(error)) from None

    def _restore_buffers(self, loaded: LoadedCheckpoint) -> None:
        saved = loaded.rank_state.get("buffers", {})
        remade = loaded.rank_state.get("remade_buffers", ())
        restore_buffers(self._state.module, saved, remade, persistent=loaded.shared["model"])


class EvaluationContents(HookedContents):
    """Contents that an evaluation restores, on any number of ranks.

    They are weights, buffers and changed fields of hooks.
    """

    files = ("model",)
    unread = ("optimizer",)

    def restore(self, loaded: LoadedCheckpoint) -> None:
        self._restore_training(loaded, ())
        self._optimizers.restore_hook_fields()
        self._restore_buffers(loaded)
