"""DINO: self-distillation with a centered and sharpened momentum teacher."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hooks.self_supervised.shared.centered_teacher import (
    CenteredTeacher,
    place_center,
    update_center,
    warm_up,
)
from hooks.self_supervised.shared.momentum_teacher import check_outputs
from hooks.state import State


@dataclass(frozen=True)
class DINOOutput:
    """Input of DINO's loss."""

    student: list[Tensor]
    """Student's outputs for all views, (B, K), with gradients; the global views first."""
    teacher: list[Tensor]
    """Teacher's outputs for the global views, (B, K)."""
    center: Tensor
    """Running mean of the teacher's outputs across all ranks, (1, K), without this batch."""
    teacher_temperature: float
    """Divisor of the teacher's centered outputs."""


@dataclass
class DINO(CenteredTeacher):
    """Give DINO's loss the outputs of the teacher, with their center and temperature.

        dino: {global_views: 2, temperature: 0.07, warmup_epochs: 30}

    The task's forward pass returns a list with the student's output (B, K) for each view, global
    views first; the hook replaces it by `DINOOutput`. The teacher sees the global views, and
    follows after each optimizer step with a momentum that rises to 1 by a cosine. The temperature
    rises by epoch during the warm-up. In val and test, center and teacher do not change.

    Columns:
        * `teacher_momentum`: The teacher's momentum.
        * `teacher_temperature`: Divisor of the teacher's centered outputs.

    Source: "Emerging Properties in Self-Supervised Vision Transformers" (Caron et al., 2021), VISSL
    DINOHook.
    """

    def on_forward(self, state: State) -> None:
        views = state.batch[0]
        student = list(state.output)
        check_outputs(student, views, "DINO")
        teacher = [self._teacher(view) for view in views[: self.global_views]]
        temperature = warm_up(
            state.epoch, self.warmup_epochs, self.warmup_temperature, self.temperature
        )
        center = place_center(self._center, teacher[0])
        state.output = DINOOutput(student, teacher, center, temperature)
        if state.phase == "train":
            self._center = update_center(
                center, torch.cat(teacher), self.center_momentum, state.world_size
            )
            state.record(teacher_temperature=temperature)
