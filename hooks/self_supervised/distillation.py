"""Distillation from a frozen teacher."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.import_path import import_callable
from hooks.setup import Setup
from hooks.state import State


@dataclass(frozen=True)
class DistillationOutput:
    """Input of a distillation loss."""

    student: Any
    """The task's output with the student, with gradients."""
    teacher: Any
    """The task's output with the teacher."""


@dataclass
class Distillation(Hook):
    """Give a distillation loss the outputs of a frozen teacher beside the student's.

        distillation: {teacher: "study.models:large", checkpoint: runs/large/model.pt}

    `teacher` builds the teacher; without it, it is a copy of the model. `checkpoint` has its
    weights. It runs in eval mode through the task's forward pass, in all phases; the hook replaces
    the output by `DistillationOutput`. Checkpoints do not contain the teacher. Source: "Distilling
    the Knowledge in a Neural Network" (Hinton et al., 2015), VISSL DistillationHook.
    """

    teacher: str | None = None
    """`module:callable` that builds the teacher: a subclass of nn.Module, or a function annotated
    to return one."""
    checkpoint: str | None = None
    """File with the teacher's weights: a state dict such as a checkpoint's model.pt, alone or under
    `model`."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        if self.teacher is None and self.checkpoint is None:
            raise ValueError(
                "needs a teacher: set `teacher` to module:callable, `checkpoint` to a file, or both"
            )
        self._builder = (
            import_callable(self.teacher, "teacher", nn.Module) if self.teacher else None
        )
        self._module: nn.Module = nn.Identity()

    def unsuitable(self, setup: Setup) -> str:
        reason = ""
        if self.teacher is None:
            reason = (
                "without a callable that builds it, the teacher is a copy of the model; set teacher"
            )
        return setup.explain_need_of_output(fsdp=reason)

    def on_start(self, state: State) -> None:
        module = self._builder() if self._builder else deepcopy(state.module)
        if self.checkpoint is not None:
            _load(module, self.checkpoint)
        self._module = module.requires_grad_(False).eval().to(state.device)

    def on_forward(self, state: State) -> None:
        with torch.no_grad():
            teacher = state.forward(self._module, state.batch)
        state.output = DistillationOutput(state.output, teacher)


def _load(module: nn.Module, path: str) -> None:
    loaded: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    inner = loaded.get("model")
    weights: Mapping[str, Tensor] = inner if isinstance(inner, Mapping) else loaded
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise SettingError(
            f"checkpoint: the weights in '{path}' do not fit the teacher: {error}"
        ) from error
