"""Teachers: momentum copies of a module, as in MoCo, BYOL, DINO and SwAV with momentum."""

from __future__ import annotations

import math
from collections.abc import Sized
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from hooks.hook import NEEDS_OUTPUT, NEEDS_WHOLE_BATCHES, Priority, Setup
from hooks.parts.norm_layers import RunningNorm
from hooks.private_torch import foreach_lerp_
from hooks.state import State


class Teacher:
    """A copy of a module whose parameters follow its student: teacher = m * teacher + (1 - m) * student.

    It is on the student's device, without gradients, dropout and wrapper: all ranks compute the same, without
    communication. Its buffers are its `own`, from its passes in training (MoCo, BYOL, DINO), or a `copy` of the
    student's at each update (SwAV with momentum).

    A hook creates it in `__post_init__`, so that a checkpoint can be loaded, and calls `follow` in `on_start`. The hook
    has priority VERY_HIGH, to copy the student before other hooks put forward hooks on it.
    """

    def __init__(self, buffers: Literal["own", "copy"] = "own") -> None:
        self.buffers = buffers
        self.module: nn.Module = nn.Identity()
        self._student: nn.Module = nn.Identity()
        self._pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._loaded: dict[str, Tensor] | None = None
        self._loaded_buffers: dict[str, Tensor] = {}

    def follow(self, student: nn.Module) -> None:
        """Become a copy of the student, or load the checkpoint's, and follow this module's parameters."""
        self.module, self._student = deepcopy(student).requires_grad_(False), student
        self._pairs = list(self.module.parameters()), list(student.parameters())
        if self._loaded is not None:
            self.module.load_state_dict(self._loaded)
            own = dict(self.module.named_buffers())
            for name, buffer in self._loaded_buffers.items():
                own[name].copy_(buffer)
        self._loaded, self._loaded_buffers = None, {}

    def train(self, mode: bool) -> None:
        """Use batch statistics or running ones; dropout and the like stay off. Call it in `on_phase_start`."""
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
        """Move towards the student: 1 keeps the teacher, 0 makes it the student."""
        teacher, student = self._pairs
        foreach_lerp_(teacher, student, 1 - momentum)
        if self.buffers == "copy":
            for own, other in zip(self.module.buffers(), self._student.buffers(), strict=True):
                own.copy_(other)

    def state_dict(self) -> dict[str, Tensor]:
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._loaded = state

    def rank_state_dict(self) -> dict[str, Tensor]:
        """Return the buffers, which differ between ranks if they are the teacher's own."""
        return dict(self.module.named_buffers())

    def load_rank_state_dict(self, state: dict[str, Tensor]) -> None:
        self._loaded_buffers = state


@dataclass
class MomentumTeacher:
    """The base of hooks with a teacher of the model's encoder.

    The teacher follows after each optimizer step. Its momentum rises to 1 by a cosine over the run, and is recorded as
    `teacher_momentum`. It uses batch statistics in training, and running ones in val and test. A hook implements
    `on_forward`, which calls `self._teacher` on views.
    """

    encoder: str = "encoder"
    """Part of the model to copy, which gives the outputs of one view; empty for the whole model."""
    momentum: Annotated[float, Ge(0), Le(1)] = 0.996
    """Share of the teacher that stays at the first step."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        self._teacher = Teacher()

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            fsdp="its teacher is a whole copy of the student",
            several_optimizers=NEEDS_OUTPUT,
            splits_batches=NEEDS_WHOLE_BATCHES,
            closure=NEEDS_WHOLE_BATCHES,
        )

    def on_start(self, state: State) -> None:
        self._teacher.follow(find_part(state.module, self.encoder))

    def on_phase_start(self, state: State) -> None:
        self._teacher.train(state.phase == "train")

    def on_update(self, state: State) -> None:
        momentum = cosine_momentum(self.momentum, completed_share(state))
        self._teacher.update(momentum)
        state.record(teacher_momentum=momentum)

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teacher.load_state_dict(state["teacher"])

    def rank_state_dict(self) -> dict[str, Any]:
        return self._teacher.rank_state_dict()

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._teacher.load_rank_state_dict(state)


def check_outputs(outputs: Sized, views: Sized, method: str) -> None:
    """Raise ValueError unless the forward pass returned an output for each view."""
    if len(outputs) != len(views):
        raise ValueError(
            f"the forward pass returned {len(outputs)} outputs for {len(views)} views; {method} needs one for each"
        )


def find_part(module: nn.Module, name: str) -> nn.Module:
    """Return a part of a model by name, or the model for an empty name; raises ValueError if there is none."""
    part: nn.Module | None = dict(module.named_modules()).get(name)
    if part is None:
        parts = ", ".join(name for name, _ in module.named_children()) or "no parts"
        raise ValueError(
            f"encoder: {type(module).__name__} has no part '{name}', it has {parts}; name one, or '' for the whole"
            " model"
        )
    return part


def cosine_momentum(base: float, completed: float) -> float:
    """Return a momentum that rises from `base` to 1 with the completed share of the run, k / K.

    m = 1 - (1 - base) * (cos(pi * k / K) + 1) / 2. Source: "Bootstrap Your Own Latent" (Grill et al., 2020).
    """
    return 1 - (1 - base) * (math.cos(math.pi * completed) + 1) / 2


def completed_share(state: State) -> float:
    """Return the completed share of the training, 0 to 1, in an event of an iteration that does not count yet."""
    if state.max_steps is not None:
        return state.step / state.max_steps
    assert state.max_epochs is not None, "an experiment has epochs or steps"
    return (state.epoch + state.phase_iteration / state.phase_length) / state.max_epochs
