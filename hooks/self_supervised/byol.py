"""Bootstrap your own latent: targets by a momentum copy of the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from torch import Tensor

from hooks.hook import Hook, Priority
from hooks.self_supervised.teacher import Teacher, completed_share, cosine_momentum, part_of
from hooks.state import State


@dataclass(frozen=True)
class BYOLOutput:
    """What BYOL's loss needs, for each view."""

    predictions: list[Tensor]
    """The predictor's outputs, (B, D), with gradients."""
    targets: list[Tensor]
    """The target network's embeddings, (B, D)."""


@dataclass
class BYOL(Hook):
    """Gives the loss BYOL's targets: the embeddings of each view by a momentum copy of encoder and projector.

    The task's forward pass gives a list with the predictor's output (B, D) for each view; the hook replaces it by
    `BYOLOutput`. The target network follows after each optimizer step, with a momentum that rises to 1 by a cosine over
    the run and is recorded as `teacher_momentum`. Every rank does the same on its own batch; no communication. In val
    and test the target network uses its running statistics and stays as it is.
    Raises ValueError where the model has no such encoder or the output does not have one tensor per view.
    Source: "Bootstrap Your Own Latent" (Grill et al., 2020).
    """

    encoder: str = "encoder"
    """The part of the model that is copied: what gives the embeddings of one view, without the predictor."""
    momentum: Annotated[float, Ge(0), Le(1)] = 0.996
    """How much of the target network stays at the first step."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        self._teacher = Teacher()

    def needs_whole_model(self) -> str:
        return "its teacher is a whole copy of the student"

    def on_start(self, state: State) -> None:
        self._teacher.follow(part_of(state.module, self.encoder))

    def on_phase_start(self, state: State) -> None:
        self._teacher.train(state.phase == "train")

    def on_forward(self, state: State) -> None:
        views, predictions = state.batch[0], list(state.output)
        if len(predictions) != len(views):
            raise ValueError(f"the forward pass gave {len(predictions)} outputs for {len(views)} views; BYOL needs a prediction for each")
        state.output = BYOLOutput(predictions, [self._teacher(view) for view in views])

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
