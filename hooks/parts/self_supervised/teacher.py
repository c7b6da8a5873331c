"""The teacher: a momentum copy of a module, as MoCo, BYOL, DINO and SwAV with momentum keep one; and what their hooks
share."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from hooks.hook import NEEDS_OUTPUT, NEEDS_WHOLE_BATCHES, Priority, Setup
from hooks.parts.batch_norm_statistics import RunningNorm
from hooks.private_torch import foreach_lerp_
from hooks.state import State


class Teacher:
    """A copy of a module, whose parameters follow those of its student: teacher = m * teacher + (1 - m) * student.

    It stands on the student's device, has no gradients and dropout off, and is not wrapped for data parallelism: all
    ranks do the same arithmetic on the same weights, without communication. Buffers are its `own`, made by its own
    passes in training (MoCo, BYOL, DINO), or a `copy` of the student's at each update (SwAV with momentum).

    A hook makes one when it is made, so that what a checkpoint holds can be given to it, and lets it `follow` the
    student in `on_start`. Such a hook has priority VERY_HIGH: a student that other hooks have put forward hooks on
    would be copied with them.
    """

    def __init__(self, buffers: Literal["own", "copy"] = "own") -> None:
        self.buffers = buffers
        self.module: nn.Module = nn.Identity()
        self._student: nn.Module = nn.Identity()
        self._pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._loaded: dict[str, Tensor] | None = None
        self._loaded_buffers: dict[str, Tensor] = {}

    def follow(self, student: nn.Module) -> None:
        """Becomes a copy of the student, or what was loaded; from here on it follows this module's parameters."""
        self.module, self._student = deepcopy(student).requires_grad_(False), student
        self._pairs = list(self.module.parameters()), list(student.parameters())
        if self._loaded is not None:
            self.module.load_state_dict(self._loaded)
            own = dict(self.module.named_buffers())
            for name, buffer in self._loaded_buffers.items():
                own[name].copy_(buffer)
        self._loaded, self._loaded_buffers = None, {}

    def train(self, mode: bool) -> None:
        """Chooses batch statistics or running ones; all else that draws or drops in training stays off. Call it in
        `on_phase_start`."""
        self.module.train(mode)
        for layer in self.module.modules():
            if not isinstance(layer, RunningNorm):
                layer.training = False

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> Any:
        """The module's output, a constant to autograd; in `on_forward` it is computed at the run's precision."""
        return self.module(*inputs)

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Moves towards the student: 1 leaves the teacher as it is, 0 makes it the student."""
        teacher, student = self._pairs
        foreach_lerp_(teacher, student, 1 - momentum)
        if self.buffers == "copy":
            for own, other in zip(self.module.buffers(), self._student.buffers(), strict=True):
                own.copy_(other)

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters and buffers: for the hook's `state_dict`."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state_dict` gave, to be used by `follow`."""
        self._loaded = state

    def rank_state_dict(self) -> dict[str, Tensor]:
        """The buffers, which differ from rank to rank where they are its own: for the hook's `rank_state_dict`."""
        return dict(self.module.named_buffers())

    def load_rank_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes back what `rank_state_dict` gave, to be used by `follow`."""
        self._loaded_buffers = state


@dataclass
class MomentumTeacher:
    """The part of a hook that keeps a teacher of the model's encoder, lets it follow, and saves it.

    The teacher begins as a copy and follows after each optimizer step, with a momentum that rises to 1 by a cosine over
    the run and is recorded as `teacher_momentum`. In training it uses batch statistics, in val and test its running
    ones. Every rank does the same; no communication. A hook brings `on_forward`, which calls `self._teacher` on views.
    Raises ValueError at start where the model has no such encoder.
    """

    encoder: str = "encoder"
    """The part of the model that is copied: what gives the outputs of one view; the whole model where empty."""
    momentum: Annotated[float, Ge(0), Le(1)] = 0.996
    """How much of the teacher stays at the first step."""

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
        self._teacher.follow(part_of(state.module, self.encoder))

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


def part_of(module: nn.Module, name: str) -> nn.Module:
    """The part of a model of this name, the model itself where the name is empty; raises ValueError where there is
    none."""
    found: nn.Module | None = dict(module.named_modules()).get(name)
    if found is None:
        parts = ", ".join(name for name, _ in module.named_children()) or "no parts"
        raise ValueError(
            f"encoder: {type(module).__name__} has no part '{name}', it has {parts}; name one, or '' for the whole"
            " model"
        )
    return found


def cosine_momentum(base: float, completed: float) -> float:
    """A momentum that rises from `base` to 1 as the completed share of the run, k / K, goes from 0 to 1.

    m = 1 - (1 - base) * (cos(pi * k / K) + 1) / 2. Source: "Bootstrap Your Own Latent" (Grill et al., 2020).
    """
    return 1 - (1 - base) * (math.cos(math.pi * completed) + 1) / 2


def completed_share(state: State) -> float:
    """How much of the training is done, 0 to 1: of its steps where the experiment counts these, else of its epochs.

    Call it in an event of a training iteration; the iteration under way does not count. It depends on counters alone,
    so it goes on where it was after a resume, with another number of ranks too.
    """
    if state.max_steps is not None:
        return state.step / state.max_steps
    assert state.max_epochs is not None, "an experiment has epochs or steps"
    return (state.epoch + state.phase_iteration / state.phase_length) / state.max_epochs
