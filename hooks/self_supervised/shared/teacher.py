"""Teachers: momentum copies of a module, as in MoCo, BYOL, DINO and SwAV with momentum.

Centering and sharpening of the outputs prevent collapse in DINO and iBOT.
"""

import math
from collections.abc import Sized
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from hooks.counts import format_count
from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.model.buffers import restore_buffers
from hooks.model.layers import RunningNorm
from hooks.needs import Needs
from hooks.private_torch import foreach_lerp_
from hooks.setup import Setup
from hooks.state import State


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
        self._pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._loaded: dict[str, Tensor] | None = None
        self._loaded_buffers: dict[str, Tensor] = {}

    def follow(self, student: nn.Module) -> None:
        """Copy the student, or load the checkpoint's teacher, and follow this module's parameters
        from now on."""
        self.module = deepcopy(student).requires_grad_(False)
        self._student = student
        self._pairs = (list(self.module.parameters()), list(student.parameters()))
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
        teacher, student = self._pairs
        foreach_lerp_(teacher, student, 1 - momentum)

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


@dataclass
class MomentumTeacher(Hook):
    """Base of hooks with a momentum teacher of the model's encoder.

    The teacher follows after each optimizer step. Its momentum rises to 1 by a cosine over the run,
    and is recorded as `teacher_momentum`. It uses batch statistics in training, and running ones in
    val and test. A hook implements `on_forward`, which calls `self._teacher` on views.
    """

    encoder: str = "encoder"
    """Submodule to copy, which computes the outputs of one view; empty for the whole model."""
    momentum: Annotated[float, Ge(0), Le(1)] = 0.996
    """Momentum of the teacher at the first step."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    state_fields: ClassVar[tuple[str, ...]] = ("_teacher",)
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_teacher",)

    def __post_init__(self) -> None:
        self._teacher = Teacher()

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain_need_of_output(fsdp="its teacher is an unsharded copy of the student")

    def on_start(self, state: State) -> None:
        self._teacher.follow(find_part(state.module, self.encoder))

    def on_phase_start(self, state: State) -> None:
        self._teacher.train(state.phase == "train")

    def on_update(self, state: State) -> None:
        momentum = cosine_momentum(self.momentum, completed_fraction(state))
        self._teacher.update(momentum)
        state.record(teacher_momentum=momentum)


def check_outputs(outputs: Sized, views: Sized, method: str) -> None:
    """Raise ValueError unless the forward pass returned an output for each view."""
    if len(outputs) != len(views):
        raise ValueError(
            f"the forward pass returned {format_count(len(outputs), 'output')} for"
            f" {format_count(len(views), 'view')};"
            f" {method} needs one for each"
        )


def find_part(module: nn.Module, name: str) -> nn.Module:
    """Return a part of a model by name, or the model for an empty name; raises SettingError if
    there is none."""
    part: nn.Module | None = dict(module.named_modules()).get(name)
    if part is None:
        parts = ", ".join(name for name, _ in module.named_children()) or "no parts"
        raise SettingError(
            f"encoder: {type(module).__name__} has no part '{name}'; set '' or one of: {parts}"
        )
    return part


def cosine_momentum(base: float, completed: float) -> float:
    """Return a momentum that rises from `base` to 1 with the completed fraction of the run, k / K.

    m = 1 - (1 - base) * (cos(pi * k / K) + 1) / 2. Source: "Bootstrap Your Own Latent" (Grill et
    al., 2020).
    """
    return 1 - (1 - base) * (math.cos(math.pi * completed) + 1) / 2


def completed_fraction(state: State) -> float:
    """Return the fraction of the training, 0 to 1, that was completed before the current optimizer
    step."""
    if state.max_steps is not None:
        return state.step / state.max_steps
    assert state.max_epochs is not None, "an experiment has epochs or steps"
    first_iteration = state.phase_iteration - state.phase_iteration % state.accumulate
    return (state.epoch + first_iteration / state.phase_length) / state.max_epochs


def place_center(center: Tensor | None, outputs: Tensor) -> Tensor:
    """Return a center (1, K) on the device of outputs (..., K); zeros before the first batch."""
    if center is None:
        return torch.zeros(1, outputs.shape[-1], device=outputs.device)
    return center.to(outputs.device)


def update_center(center: Tensor, outputs: Tensor, momentum: float, world_size: int) -> Tensor:
    """Return m * center + (1 - m) * mean of the outputs (n, K) of all ranks; collective."""
    count = outputs.new_full((1,), len(outputs), dtype=torch.float32)
    total = torch.cat([outputs.float().sum(0), count])
    if world_size > 1:
        dist.all_reduce(total)
    mean = total[:-1] / total[-1]
    return center.lerp(mean.unsqueeze(0), 1 - momentum)


def warm_up(epoch: int, epochs: int, first: float, last: float) -> float:
    """Return a temperature that rises linearly from `first` in epoch 0 to `last` in the last of
    `epochs`."""
    if epoch >= epochs:
        return last
    return first + (last - first) * epoch / max(1, epochs - 1)


@dataclass
class CenteredTeacher(MomentumTeacher):
    """Base of hooks whose teacher sees the global views, with a running center of its outputs."""

    global_views: Annotated[int, Ge(1)] = 2
    """Number of global views (large crops), which come first."""
    center_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """Momentum of the center: the weight of its old value at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """Teacher's temperature after the warm-up."""
    warmup_temperature: Annotated[float, Gt(0), Needs("warmup_epochs")] = 0.04
    """Teacher's temperature in the first epoch of the warm-up."""
    warmup_epochs: Annotated[int, Ge(0)] = 0
    """Number of warm-up epochs; the last of several has the final temperatures."""

    collective: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_teacher", "_center")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._center: Tensor | None = None
