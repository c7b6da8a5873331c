"""Self-distillation of views and of masked patches: a momentum teacher that sees the patches its student does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks.hook import Hook
from hooks.parts.self_supervised.centre import Centre, CentredTeacher, warmed_up
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State

Tokens = tuple[Tensor, Tensor]
"""Of a view: the output for the whole of it, (B, K), and those for its patches, (B, N, P)."""


@dataclass(frozen=True)
class IBOTOutput:
    """What iBOT's loss needs besides the masks."""

    student: list[Tokens]
    """The student's outputs for every view, with gradients; the global views, which were masked for it, first."""
    teacher: list[Tokens]
    """The teacher's outputs for the global views, which were not masked for it."""
    centre: Tensor
    """The running mean of the teacher's outputs for whole views, over all ranks, (1, K), without this batch."""
    patch_centre: Tensor
    """The same of its outputs for patches, (1, P)."""
    temperature: float
    """What the teacher's outputs for whole views are divided by once they are centred."""
    patch_temperature: float
    """The same for patches."""


@dataclass
class IBOT(CentredTeacher, Hook):
    """Gives the loss iBOT's teacher outputs for views and patches, their centres and their temperatures.

    The encoder gives a pair for a view: an output for the whole of it (B, K), and one for each patch (B, N, P). The
    task's forward pass gives a list of the student's pairs, global views first; it masks patches of the global views,
    which is its own affair. The hook replaces the output by `IBOTOutput`. The teacher sees the global views alone, and
    whole: it is called with a view and nothing else. It follows after each optimizer step, with a momentum that rises
    to 1 by a cosine over the run; temperatures rise linearly from epoch to epoch while they warm up. Records
    `teacher_momentum`, `teacher_temperature` and `teacher_patch_temperature`. In val and test teacher and centres stay.
    Communication: sums of K + 1 and of P + 1 values for each training batch. Raises ValueError where the model has no
    such encoder or the output does not have one pair per view.
    Source: "iBOT: Image BERT Pre-Training with Online Tokenizer" (Zhou et al., 2022), VISSL IBOTHook.
    """

    patch_centre_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """How much of the centre of patches stays at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.04
    """The teacher's temperature for whole views after the warm-up."""
    patch_temperature: Annotated[float, Gt(0)] = 0.07
    """The teacher's temperature for patches after the warm-up."""
    warmup_patch_temperature: Annotated[float, Gt(0)] = 0.04
    """The same in the first epoch of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs == 0:
            refuse_unread(self, "warmup_epochs", "warmup_patch_temperature")
        self._patch_centre = Centre(self.patch_centre_momentum)

    def on_forward(self, state: State) -> None:
        views, student = state.batch[0], list(state.output)
        if len(student) != len(views) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in student):
            raise ValueError(
                f"the forward pass gave {len(student)} outputs for {len(views)} views; iBOT needs a pair (view,"
                " patches) for each"
            )
        teacher = [self._teacher(view) for view in views[: self.global_views]]
        whole, patches = (
            torch.cat([pair[0] for pair in teacher]),
            torch.cat([pair[1] for pair in teacher]).flatten(0, 1),
        )
        temperature = warmed_up(state.epoch, self.warmup_epochs, self.warmup_temperature, self.temperature)
        patch_temperature = warmed_up(
            state.epoch, self.warmup_epochs, self.warmup_patch_temperature, self.patch_temperature
        )
        centre, patch_centre = self._centre.like(whole), self._patch_centre.like(patches)
        state.output = IBOTOutput(student, teacher, centre, patch_centre, temperature, patch_temperature)
        if state.phase == "train":
            self._centre.follow(whole, state.world_size)
            self._patch_centre.follow(patches, state.world_size)
            state.record(teacher_temperature=temperature, teacher_patch_temperature=patch_temperature)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._patch_centre.state_dict("patch_centre")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._patch_centre.value = state.get("patch_centre")
