"""SwAV with a momentum encoder."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le

from hooks.self_supervised.shared.assigned_views import check_assigned_views
from hooks.self_supervised.shared.swapped_prediction import (
    SwappedPrediction,
    find_prototypes,
    split_output,
)
from hooks.self_supervised.shared.teacher import Teacher
from hooks.state import State


@dataclass
class SwAVMomentum(SwappedPrediction):
    """Give SwAV's loss the codes of a momentum encoder, and keep the prototypes of both at length
    1.

    Like `swav`, but codes and queue use embeddings of a copy of the model, in eval mode. Its
    parameters move toward the model's after each step. Its buffers are those that the model has
    after its own forward pass in training, so running statistics include the current batch.
    Source: VISSL SwAVMomentumHook and SwAVMomentumNormalizePrototypesHook.
    """

    momentum: Annotated[float, Ge(0), Le(1)] = 0.99
    """Momentum of the encoder: the weight of its old parameters at each step."""

    state_fields: ClassVar[tuple[str, ...]] = ("_teacher",)
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_teacher",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._teacher = Teacher()
        self._teacher_layer = self._layer

    def on_start(self, state: State) -> None:
        super().on_start(state)
        self._teacher.follow(state.module)
        self._teacher_layer = find_prototypes(self._teacher.module, self.prototypes)
        self._teacher.train(False)

    def on_forward(self, state: State) -> None:
        views, indices = state.batch
        check_assigned_views(self.assigned_views, len(views))
        _, scores = split_output(state.output, len(views))
        assigned_views = [views[view] for view in self.assigned_views]
        if state.phase == "train":
            self._teacher.copy_buffers()
        with torch.no_grad():
            output = state.forward(self._teacher.module, (assigned_views, indices))
        embeddings, assigned = split_output(output, len(self.assigned_views))
        state.output = self.swap(scores, assigned, embeddings, self._teacher_layer, state)

    def on_update(self, state: State) -> None:
        self.normalize(self._layer)
        self._teacher.update(self.momentum)
        self.normalize(self._teacher_layer)
