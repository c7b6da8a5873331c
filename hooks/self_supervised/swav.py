"""Online clustering: SwAV's codes, from the batches of all ranks and a queue, and its prototypes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import nn

from hooks.hook import Hook, Priority
from hooks.rhythm import Rhythm
from hooks.self_supervised import prototypes, sinkhorn
from hooks.self_supervised.prototypes import SwappedViews
from hooks.state import State


@dataclass
class SwAV(Hook):
    """Gives the loss SwAV's codes, and keeps the prototypes on the unit sphere.

    The task's forward pass gives `(embeddings, scores)`, each a list with one tensor per view: unit-length embeddings
    (B, D) and their similarities to the prototypes (B, K). The hook replaces it by `SwappedViews`: all scores, and for
    each assigned view the codes by Sinkhorn-Knopp over the samples of all ranks, joined by those in the queue once it is
    full. Prototypes are normalized at the start and after each optimizer step. In val and test, where ranks may have
    different numbers of batches, codes come from the rank's own batch and the queue is left alone.
    Communication: one collective per Sinkhorn iteration, of K values for each assigned view. The queue is each rank's own and survives
    a restart with as many ranks. Raises ValueError where the model has no such prototypes, TypeError for other outputs.
    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), VISSL
    SwAVUpdateQueueScoresHook and NormalizePrototypesHook.
    """

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
        self._layer = nn.Linear(1, 1, bias=False)

    def needs_whole_model(self) -> str:
        return "it changes whole prototypes"

    def on_start(self, state: State) -> None:
        self._layer = prototypes.layer(state.module, self.prototypes)
        if state.step == 0:
            prototypes.normalize(self._layer)

    def on_forward(self, state: State) -> None:
        embeddings, scores = prototypes.of_views(state.output, len(state.batch[0]))
        assigned = torch.stack([scores[view] for view in self.assigned_views]).detach()
        training = state.phase == "train"
        joined = self._queue.join(assigned, self._layer) if training else assigned
        codes = sinkhorn.codes(joined, self.epsilon, self.iterations, across_ranks=training and state.world_size > 1)
        state.output = SwappedViews(scores, dict(zip(self.assigned_views, codes[:, : assigned.shape[1]], strict=True)))
        share = self.queue_length // state.world_size
        if training and share and prototypes.reached(self.queue_begin, state):
            self._queue.push(torch.stack([embeddings[view] for view in self.assigned_views]), share)

    def on_update(self, state: State) -> None:
        prototypes.normalize(self._layer)

    def rank_state_dict(self) -> dict[str, Any]:
        return self._queue.state_dict()

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.load_state_dict(state)
