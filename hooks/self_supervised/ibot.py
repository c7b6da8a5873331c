"""iBOT: self-distillation of views and of masked patches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks.counts import format_count
from hooks.needs import Needs
from hooks.self_supervised.shared.centered_teacher import (
    CenteredTeacher,
    place_center,
    update_center,
    warm_up,
)
from hooks.state import State

Tokens = tuple[Tensor, Tensor]
"""Outputs of a view: for the whole view (B, K), and for its patches (B, N, P)."""


@dataclass(frozen=True)
class IBOTOutput:
    """Input of iBOT's loss, besides the masks."""

    student: list[Tokens]
    """Student's outputs for all views, with gradients; the global views, which it sees masked,
    first."""
    teacher: list[Tokens]
    """Teacher's outputs for the unmasked global views."""
    center: Tensor
    """Running mean of the teacher's outputs for whole views across all ranks, (1, K), without this
    batch."""
    patch_center: Tensor
    """Running mean of the teacher's outputs for patches, (1, P)."""
    temperature: float
    """Divisor of the teacher's centered outputs for whole views."""
    patch_temperature: float
    """Divisor of the teacher's centered outputs for patches."""


@dataclass
class IBOT(CenteredTeacher):
    """Give iBOT's loss the outputs of the teacher for views and patches, with centers and
    temperatures.

        ibot: {global_views: 2, temperature: 0.04, patch_temperature: 0.07}

    The encoder returns a pair for a view: an output for the whole view (B, K), and one for each
    patch (B, N, P). The task's forward pass masks patches of the global views itself, and returns a
    list of the student's pairs, global views first; the hook replaces it by `IBOTOutput`. The
    teacher sees the global views without masks. Momentum and temperatures follow the schedules of
    `dino`.

    Columns:
        * `teacher_momentum`: The teacher's momentum.
        * `teacher_temperature`, `teacher_patch_temperature`: Divisors of the teacher's centered
          outputs, for whole views and for patches.

    Source: "iBOT: Image BERT Pre-Training with Online Tokenizer" (Zhou et al., 2022), VISSL
    IBOTHook.
    """

    patch_center_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """Momentum of the patches' center: the weight of its old value at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.04
    """Teacher's temperature for whole views after the warm-up."""
    patch_temperature: Annotated[float, Gt(0)] = 0.07
    """Teacher's temperature for patches after the warm-up."""
    warmup_patch_temperature: Annotated[float, Gt(0), Needs("warmup_epochs")] = 0.04
    """Teacher's temperature for patches in the first epoch of the warm-up."""

    state_fields: ClassVar[tuple[str, ...]] = ("_patch_center",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._patch_center: Tensor | None = None

    def on_forward(self, state: State) -> None:
        views = state.batch[0]
        student = list(state.output)
        _check_pairs(student, len(views))
        teacher = [self._teacher(view) for view in views[: self.global_views]]
        whole = torch.cat([output for output, _ in teacher])
        patches = torch.cat([output for _, output in teacher]).flatten(0, 1)

        temperature = warm_up(
            state.epoch, self.warmup_epochs, self.warmup_temperature, self.temperature
        )
        patch_temperature = warm_up(
            state.epoch, self.warmup_epochs, self.warmup_patch_temperature, self.patch_temperature
        )
        center = place_center(self._center, whole)
        patch_center = place_center(self._patch_center, patches)
        state.output = IBOTOutput(
            student, teacher, center, patch_center, temperature, patch_temperature
        )
        if state.phase != "train":
            return

        self._center = update_center(center, whole, self.center_momentum, state.world_size)
        self._patch_center = update_center(
            patch_center, patches, self.patch_center_momentum, state.world_size
        )
        state.record(teacher_temperature=temperature, teacher_patch_temperature=patch_temperature)


def _check_pairs(outputs: Sequence[Any], views: int) -> None:
    """Raise ValueError unless the forward pass returned a pair for each view."""
    are_pairs = all(isinstance(output, tuple) and len(output) == 2 for output in outputs)
    if len(outputs) == views and are_pairs:
        return
    kinds = ", ".join(type(output).__name__ for output in outputs)
    raise ValueError(
        f"forward() must return {format_count(views, 'pair')} (view, patches), one for each view,"
        f" got {format_count(len(outputs), 'output')}: {kinds}"
    )
