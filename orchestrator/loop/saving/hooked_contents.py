"""Checkpoint contents of the hooked loop: model, optimizers, position in the data, means."""

from typing import Any

from hooks.state import State
from orchestrator.loop.data.phases import Data
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.loop.saving.data_sizes import check_position, describe_changed_sizes
from orchestrator.loop.saving.misfit import explaining_misfit
from orchestrator.loop.saving.saved_model import SavedModel
from orchestrator.loop.saving.saved_optimizers import SavedOptimizers
from orchestrator.loop.step.means import Means
from orchestrator.loop.step.training_runner import TrainingRunner


class HookedContents:
    """Checkpoint contents of a hooked loop on each rank. Used in workers."""

    files: tuple[str, ...] = ("model", "optimizer")
    unread: tuple[str, ...] = ()

    def __init__(
        self,
        state: State,
        iterations: TrainingRunner,
        data: Data,
        model: SavedModel,
        optimizers: SavedOptimizers,
    ) -> None:
        self._state = state
        self._iterations = iterations
        self._data = data
        self._model = model
        self._optimizers = optimizers

    @property
    def mesh(self) -> Any:
        return self._model.mesh

    def collect_shared(self) -> dict[str, Any]:
        return {"model": self._model.save_weights(), "optimizer": self._optimizers.save()}

    def trim(self, content: dict[str, Any]) -> None:
        self._model.leave_out_frozen(content)

    def collect_per_rank(self) -> dict[str, Any]:
        return {
            **self._model.save_buffers(),
            "means": self._iterations.metrics.means.state_dict(),
            "data": self._data.train.state_dict(),
            "task": self._iterations.task.state_dict(),
        }

    def make_details(self) -> dict[str, Any]:
        return {
            "data": self._data.sizes(),
            "phases": [*self._data.phases],
            "loader_workers": self._data.train.loader_workers,
            "microbatches": self._iterations.microbatches,
            **self._optimizers.describe(),
            **self._model.describe(),
        }

    def restore(self, loaded: LoadedCheckpoint) -> None:
        self._restore_model_and_optimizers(loaded)
        self._compare_data(loaded)
        self._iterations.microbatches = loaded.manifest.get("microbatches", 1)
        task_state = loaded.read_per_rank("task", self._state.world_size)
        if task_state:
            self._iterations.task.load_state_dict(task_state)
        self._restore_means(loaded)

        # A dataset may depend on the task.
        self._data.train.restore(loaded.rank_state.get("data"), loaded.world_size)
        self._state.ended_early = self._data.train.is_exhausted

    def _restore_model_and_optimizers(self, loaded: LoadedCheckpoint) -> None:
        # First, because it refuses checkpoints of other optimizers.
        rescheduled = self._optimizers.find_rescheduled(loaded.manifest)
        # If the weights do not fit, that explains why the optimizers do not.
        self._model.restore_weights(loaded)
        with explaining_misfit(loaded, self._state.module, "its optimizer's state has no {}"):
            self._optimizers.restore(loaded, rescheduled)
        self._model.restore_training_settings(loaded)
        # The settings of this experiment take the place of those that the optimizers have restored.
        self._optimizers.restore_settings(loaded, rescheduled)
        self._model.restore_own_buffers(loaded)

    def _compare_data(self, loaded: LoadedCheckpoint) -> None:
        """Show changed numbers of samples; raises CheckpointError if the position is behind the last
        one."""
        sizes = self._data.sizes()
        check_position(loaded, sizes)
        if self._state.is_master:
            for change in describe_changed_sizes(loaded, sizes):
                self._state.show(change)

    def _restore_means(self, loaded: LoadedCheckpoint) -> None:
        state = self._state
        means = Means()
        means.include(loaded.rank_state.get("means", {}))
        for rank in range(state.rank + state.world_size, loaded.world_size, state.world_size):
            # The means of the current phase include the samples of ranks that no longer exist.
            means.include(loaded.load_rank_state(rank).get("means", {}))
        self._iterations.metrics.means = means


class EvaluationContents(HookedContents):
    """Contents that an evaluation restores, on any number of ranks.

    They are weights, buffers and changed fields of hooks.
    """

    files = ("model",)
    unread = ("optimizer",)

    def restore(self, loaded: LoadedCheckpoint) -> None:
        self._model.restore_weights(loaded)
        self._optimizers.restore_hook_fields()
        self._model.restore_own_buffers(loaded)
