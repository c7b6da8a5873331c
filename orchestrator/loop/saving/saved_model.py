"""The model in a checkpoint: its weights and buffers, and what training has changed of it."""

from typing import Any

from hooks.model.buffers import describe_buffers, restore_buffers
from hooks.state import State
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.loop.model.frozen_weights import RECORD, FrozenWeights, add_frozen_weights
from orchestrator.loop.model.gradient_order import GradientOrder
from orchestrator.loop.model.sharded_modules import get_mesh, shard_model_state
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.loop.saving.misfit import explaining_misfit


class SavedModel:
    """The model of a training in its checkpoints. Used in workers.

    `frozen` are the weights that checkpoints leave out; None if they hold all.
    """

    def __init__(self, state: State, frozen: FrozenWeights | None) -> None:
        self._state = state
        self._module = state.module
        self._frozen = frozen
        self._buffers_at_start = describe_buffers(state.module)
        self._trained_at_start = self._find_trained()
        self._gradient_order = GradientOrder(state.model)

    @property
    def mesh(self) -> Any:
        """Device mesh over which its tensors are sharded; None if they are not."""
        return get_mesh(self._module)

    # Saving

    def save_weights(self) -> dict[str, Any]:
        """Return the weights, with the buffers that belong to them."""
        weights: dict[str, Any] = self._module.state_dict()
        return weights

    def leave_out_frozen(self, content: dict[str, Any]) -> None:
        """Leave out the frozen weights of a checkpoint's shared content, before `describe`. Only the
        master does, because it alone has the content."""
        if self._frozen and self._state.is_master:
            self._frozen.leave_out(content)

    def save_buffers(self) -> dict[str, Any]:
        """Return this rank's own buffers."""
        return {
            "buffers": dict(self._module.named_buffers()),
            "remade_buffers": self._list_remade_buffers(),
        }

    def describe(self) -> dict[str, Any]:
        """Return entries of the manifest: what training has changed of the model, and which weights
        `leave_out_frozen` has left out of this checkpoint."""
        entries = {
            "gradient_order": self._gradient_order.save(),
            "remade_buffers": self._list_remade_buffers(),
            "requires_grad": self._find_changed_trained(),
        }
        if self._frozen:
            entries[RECORD] = self._frozen.describe()
        return entries

    def _find_trained(self) -> dict[str, bool]:
        """Return for each parameter whether it is trained, rather than frozen."""
        return {name: value.requires_grad for name, value in self._module.named_parameters()}

    def _find_changed_trained(self) -> dict[str, bool]:
        """Return the parameters that training has frozen or unfrozen since the start. All others
        follow the task, also if it is changed before a resume."""
        before = self._trained_at_start
        now = self._find_trained()
        return {name: now[name] for name in now if now[name] != before.get(name)}

    def _list_remade_buffers(self) -> list[str]:
        """Return the buffers that were made, or changed in shape or dtype, since the start."""
        before = self._buffers_at_start
        now = describe_buffers(self._module)
        return [name for name in now if now[name] != before.get(name)]

    # Restoring

    def restore_weights(self, loaded: LoadedCheckpoint) -> None:
        """Restore the weights; raises UsageError if they do not fit."""
        self._add_frozen_weights(loaded)
        weights = loaded.shared["model"]
        # PyTorch loads a buffer only into one of the same shape.
        remade = loaded.manifest.get("remade_buffers", ())
        remade_weights = {name: weights[name] for name in remade if name in weights}
        restore_buffers(self._module, remade_weights, remade, persistent=weights)
        missing_key = "the model's load_state_dict asks for {}, which is not in the checkpoint"
        with explaining_misfit(loaded, self._module, missing_key):
            self._module.load_state_dict(shard_model_state(weights, self._module))

    def restore_training_settings(self, loaded: LoadedCheckpoint) -> None:
        """Restore the order of the gradients, and which parameters are trained."""
        self._gradient_order.restore(loaded.manifest.get("gradient_order", ()))
        for name, is_trained in loaded.manifest.get("requires_grad", {}).items():
            self._module.get_parameter(name).requires_grad_(is_trained)

    def restore_own_buffers(self, loaded: LoadedCheckpoint) -> None:
        """Restore this rank's own buffers, in place of the master's, which are among the weights."""
        saved = loaded.rank_state.get("buffers", {})
        remade = loaded.rank_state.get("remade_buffers", ())
        restore_buffers(self._module, saved, remade, persistent=loaded.shared["model"])

    def _add_frozen_weights(self, loaded: LoadedCheckpoint) -> None:
        record = loaded.manifest.get(RECORD)
        if self._frozen:
            self._frozen.continue_from(record, loaded.name)
        if record is None:
            return
        try:
            add_frozen_weights(loaded.shared, record, self._module, loaded.name)
        except CheckpointError as error:
            # The checkpoint is intact, so an older one would not help.
            raise UsageError(str(error)) from None
