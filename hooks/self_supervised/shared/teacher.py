"""Teachers: momentum copies of a module, as in MoCo, BYOL, DINO and SwAV with momentum."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from hooks.model.buffers import restore_buffers
from hooks.model.layers import RunningNorm
from hooks.private_torch import foreach_lerp_


class Teacher:
    """A copy of a module whose parameters follow its student: teacher = m * teacher + (1 - m) *
    student.

    It is on the student's device, without gradients, dropout and wrapper: all ranks compute the
    same, without communication. Its buffers are its own, from its passes in training (MoCo, BYOL,
    DINO), or the student's, by `copy_buffers` (SwAV with momentum).

    A hook creates it in `__post_init__`, so that a checkpoint can be loaded, and calls `follow` in
    `on_start`. The hook has priority VERY_HIGH, to copy the student before other hooks register
    forward hooks on it.
    """

    def __init__(self) -> None:
        self.module: nn.Module = nn.Identity()
        self._student: nn.Module = nn.Identity()
        self._parameters: list[Tensor] = []
        self._student_parameters: list[Tensor] = []
        self._loaded: dict[str, Tensor] | None = None
        """State dict of the teacher in the restored checkpoint, until `follow` takes it."""
        self._loaded_buffers: dict[str, Tensor] = {}
        """Buffers of this rank's teacher in that checkpoint."""

    def follow(self, student: nn.Module) -> None:
        """Copy the student, or load the checkpoint's teacher, and follow this module's parameters
        from now on."""
        self.module = deepcopy(student).requires_grad_(False)
        self._student = student
        self._parameters = list(self.module.parameters())
        self._student_parameters = list(student.parameters())
        if self._loaded is not None:
            saved = self._loaded_buffers
            restore_buffers(self.module, saved, remade=saved, persistent=self._loaded)
            self.module.load_state_dict(self._loaded)
            restore_buffers(self.module, saved, remade=(), persistent=self._loaded)
        self._loaded = None
        self._loaded_buffers = {}

    def train(self, mode: bool) -> None:
        """Use batch statistics if `mode`, else running statistics; dropout stays off. Call it in
        `on_phase_start`."""
        self.module.train(mode)
        for layer in self.module.modules():
            if not isinstance(layer, RunningNorm):
                layer.training = False

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> Any:
        """Return the module's output without gradients; in `on_forward` at the run's precision."""
        return self.module(*inputs)

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move the weights toward the student: momentum 1 keeps the teacher, 0 copies the
        student."""
        foreach_lerp_(self._parameters, self._student_parameters, 1 - momentum)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Take the student's buffers, such as running statistics."""
        for own, other in zip(self.module.buffers(), self._student.buffers(), strict=True):
            own.copy_(other)

    def state_dict(self) -> dict[str, Tensor]:
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._loaded = state

    def rank_state_dict(self) -> dict[str, Tensor]:
        """Return the buffers, which come from the rank's own batches."""
        return dict(self.module.named_buffers())

    def load_rank_state_dict(self, state: dict[str, Tensor]) -> None:
        self._loaded_buffers = state
