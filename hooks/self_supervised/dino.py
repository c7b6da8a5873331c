"""Self-distillation without labels: a momentum teacher that sees large crops, its outputs centred and sharpened."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hooks.hook import Hook
from hooks.parts.self_supervised.centre import CentredTeacher, warmed_up
from hooks.state import State


@dataclass(frozen=True)
class DINOOutput:
    """What DINO's loss needs."""

    student: list[Tensor]
    """The student's outputs for every view, (B, K), with gradients; the global views first."""
    teacher: list[Tensor]
    """The teacher's outputs for the global views, (B, K)."""
    centre: Tensor
    """The running mean of the teacher's outputs over all ranks, (1, K), without this batch."""
    teacher_temperature: float
    """What the teacher's outputs are divided by once they are centred."""


@dataclass
class DINO(CentredTeacher, Hook):
    """Gives the loss DINO's teacher outputs, their centre and their temperature.

    The task's forward pass gives a list with the student's output (B, K) for each view, global views first; the hook
    replaces it by `DINOOutput`. The teacher sees the global views alone. It follows after each optimizer step, with a
    momentum that rises to 1 by a cosine over the run; the temperature rises linearly from epoch to epoch while it warms
    up. Records `teacher_momentum` and `teacher_temperature`. In val and test teacher and centre stay as they are.
    Communication: one sum of K + 1 values for each training batch. Raises ValueError where the model has no such
    encoder or the output does not have one tensor per view. Source: "Emerging Properties in Self-Supervised Vision
    Transformers" (Caron et al., 2021), VISSL DINOHook.
    """

    def on_forward(self, state: State) -> None:
        views, student = state.batch[0], list(state.output)
        if len(student) != len(views):
            raise ValueError(
                f"the forward pass gave {len(student)} outputs for {len(views)} views; DINO needs one for each"
            )
        teacher = [self._teacher(view) for view in views[: self.global_views]]
        temperature = warmed_up(state.epoch, self.warmup_epochs, self.warmup_temperature, self.temperature)
        state.output = DINOOutput(student, teacher, self._centre.like(teacher[0]), temperature)
        if state.phase == "train":
            self._centre.follow(torch.cat(teacher), state.world_size)
            state.record(teacher_temperature=temperature)
