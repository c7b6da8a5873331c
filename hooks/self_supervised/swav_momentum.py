"""SwAV with a momentum encoder: the codes come from a slowly moving copy of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import nn

from hooks.hook import Hook, Priority
from hooks.rhythm import Rhythm
from hooks.self_supervised import prototypes, sinkhorn
from hooks.self_supervised.prototypes import SwappedViews
from hooks.self_supervised.teacher import Teacher
from hooks.state import State


@dataclass
class SwAVMomentum(Hook):
    """Gives the loss codes by a momentum encoder, and keeps the prototypes of both on the unit sphere.

    As `SwAV`, but codes and queue are of the embeddings that a copy of the model gives for the assigned views. After
    each optimizer step its parameters move towards the model's, and its buffers become the model's; it runs in eval mode.
    VISSL does the same at the beginning of the next iteration; only buffers are one forward pass younger there.
    Communication: one collective per Sinkhorn iteration, of K values for each assigned view. Encoder and queue survive a restart, the
    queue with as many ranks. Raises ValueError where the model has no such prototypes, TypeError for other outputs.
    Source: VISSL SwAVMomentumHook and SwAVMomentumNormalizePrototypesHook.
    """

    momentum: Annotated[float, Ge(0), Le(1)] = 0.99
    """How much of the encoder stays at each step."""
    prototypes: str = "prototypes"
    """The name of the prototypes in the model: a linear layer without bias."""
    assigned_views: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)] = field(default_factory=lambda: [0, 1])
    """The places of the views that get codes: the large crops."""
    epsilon: Annotated[float, Gt(0)] = 0.05
    """How soft the codes are."""
    iterations: Annotated[int, Ge(1)] = 3
    """Iterations of Sinkhorn-Knopp."""
    queue_length: Annotated[int, Ge(0)] = 0
    """Embeddings in the queues of all ranks together, for each assigned view; 0 is no queue."""
    queue_begin: Rhythm = Rhythm(1)
    """Epochs or optimizer steps to complete before the queue begins to fill."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._queue = prototypes.Queue()
        self._teacher = Teacher(buffers="copy")
        self._layers = [nn.Linear(1, 1, bias=False)] * 2

    def needs_whole_model(self) -> str:
        return "its teacher is a whole copy of the student"

    def on_start(self, state: State) -> None:
        own = prototypes.layer(state.module, self.prototypes)
        if state.step == 0:
            prototypes.normalize(own)
        self._teacher.follow(state.module)
        self._layers = [own, prototypes.layer(self._teacher.module, self.prototypes)]
        self._teacher.train(False)

    def on_forward(self, state: State) -> None:
        views, indices = state.batch
        _, scores = prototypes.of_views(state.output, len(views))
        with torch.no_grad():
            output = state.forward(self._teacher.module, ([views[view] for view in self.assigned_views], indices))
        embeddings, assigned = map(torch.stack, prototypes.of_views(output, len(self.assigned_views)))
        training = state.phase == "train"
        joined = self._queue.join(assigned, self._layers[1]) if training else assigned
        codes = sinkhorn.codes(joined, self.epsilon, self.iterations, across_ranks=training and state.world_size > 1)
        state.output = SwappedViews(scores, dict(zip(self.assigned_views, codes[:, : assigned.shape[1]], strict=True)))
        share = self.queue_length // state.world_size
        if training and share and prototypes.reached(self.queue_begin, state):
            self._queue.push(embeddings, share)

    def on_update(self, state: State) -> None:
        prototypes.normalize(self._layers[0])
        self._teacher.update(self.momentum)
        prototypes.normalize(self._layers[1])

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teacher.load_state_dict(state["teacher"])

    def rank_state_dict(self) -> dict[str, Any]:
        return {"queue": self._queue.state_dict(), "buffers": self._teacher.rank_state_dict()}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.load_state_dict(state["queue"])
        self._teacher.load_rank_state_dict(state["buffers"])
