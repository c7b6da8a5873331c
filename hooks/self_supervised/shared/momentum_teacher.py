"""The base of hooks with a momentum teacher of the model's encoder."""

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from torch import nn

from hooks.counts import format_count
from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.self_supervised.shared.teacher import Teacher
from hooks.setup import Setup
from hooks.state import State


@dataclass
class MomentumTeacher(Hook):
    """Base of hooks with a momentum teacher of the model's encoder.

    The teacher follows after each optimizer step. Unless a hook has its own `on_update`, the
    momentum rises to 1 by a cosine over the run, and is recorded as `teacher_momentum`. The teacher
    uses batch statistics in training, and running ones in val and test. A hook implements
    `on_forward`, which calls `self._teacher` on views.
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
        self._teacher.follow(find_encoder(state.module, self.encoder))

    def on_phase_start(self, state: State) -> None:
        self._teacher.train(state.phase == "train")

    def on_update(self, state: State) -> None:
        momentum = raise_momentum(self.momentum, compute_completed_fraction(state))
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


def find_encoder(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule that `encoder` names, or the model for an empty name; raises
    SettingError if there is none."""
    try:
        return module.get_submodule(name)
    except AttributeError:
        parts = ", ".join(name for name, _ in module.named_children()) or "no parts"
        raise SettingError(
            f"encoder: {type(module).__name__} has no part '{name}'; set '' or one of: {parts}"
        ) from None


def raise_momentum(base: float, completed: float) -> float:
    """Return a momentum that rises from `base` to 1 with the completed fraction of the run, k / K.

    m = 1 - (1 - base) * (cos(pi * k / K) + 1) / 2. Source: "Bootstrap Your Own Latent" (Grill et
    al., 2020).
    """
    return 1 - (1 - base) * (math.cos(math.pi * completed) + 1) / 2


def compute_completed_fraction(state: State) -> float:
    """Return the fraction of the training, 0 to 1, that was completed before the current optimizer
    step."""
    if state.max_steps is not None:
        return state.step / state.max_steps
    assert state.max_epochs is not None, "an experiment has epochs or steps"
    first_iteration = state.phase_iteration - state.phase_iteration % state.accumulate
    return (state.epoch + first_iteration / state.phase_length) / state.max_epochs
