"""What hooks have in common whose targets come from a momentum copy of the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from hooks.hook import Priority
from hooks.parts.self_supervised.teacher import Teacher, completed_share, cosine_momentum, part_of
from hooks.state import State


@dataclass
class MomentumTeacher:
    """The part of a hook that keeps a teacher of the model's encoder, lets it follow, and saves it.

    The teacher begins as a copy and follows after each optimizer step, with a momentum that rises to 1 by a cosine over
    the run and is recorded as `teacher_momentum`. In training it uses batch statistics, in val and test its running ones.
    Every rank does the same; no communication. A hook brings `on_forward`, which calls `self._teacher` on views. Raises
    ValueError at start where the model has no such encoder.
    """

    encoder: str = "encoder"
    """The part of the model that is copied: what gives the outputs of one view; the whole model where empty."""
    momentum: Annotated[float, Ge(0), Le(1)] = 0.996
    """How much of the teacher stays at the first step."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        self._teacher = Teacher()

    def needs_whole_model(self) -> str:
        return "its teacher is a whole copy of the student"

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
