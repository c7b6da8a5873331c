"""Online clustering: SwAV's codes, from the batches of all ranks and a queue, and its prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hooks.hook import Hook, Setup
from hooks.parts.self_supervised import prototypes
from hooks.parts.self_supervised.prototypes import SwappedPrediction
from hooks.state import State


@dataclass
class SwAV(SwappedPrediction, Hook):
    """Gives the loss SwAV's codes, and keeps the prototypes on the unit sphere.

    The task's forward pass gives `(embeddings, scores)`, each a list with one tensor per view: unit-length embeddings
    (B, D) and their similarities to the prototypes (B, K). The hook replaces it by `SwappedViews`: all scores, and for
    each assigned view the codes by Sinkhorn-Knopp over the samples of all ranks, joined by those in the queue once it
    is full. Prototypes are normalized at the start and after each optimizer step. In val and test, where ranks may have
    different numbers of batches, codes come from the rank's own batch and the queue is left alone. Communication: one
    collective per Sinkhorn iteration, of K values for each assigned view. The queue is each rank's own and survives a
    restart with as many ranks. Raises ValueError where the model has no such prototypes, TypeError for other outputs.
    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), VISSL
    SwAVUpdateQueueScoresHook and NormalizePrototypesHook.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layer = nn.Linear(1, 1, bias=False)

    def unsuitable(self, setup: Setup) -> str:
        return super().unsuitable(setup) or setup.explain(fsdp="it changes whole prototypes")

    def on_start(self, state: State) -> None:
        self._layer = prototypes.layer(state.module, self.prototypes)
        if state.step == 0:
            prototypes.normalize(self._layer)

    def on_forward(self, state: State) -> None:
        embeddings, scores = prototypes.of_views(state.output, len(state.batch[0]))
        assigned = [scores[view] for view in self.assigned_views], [embeddings[view] for view in self.assigned_views]
        state.output = self.swapped(scores, *assigned, self._layer, state)

    def on_update(self, state: State) -> None:
        prototypes.normalize(self._layer)

    def rank_state_dict(self) -> dict[str, Any]:
        return self._queue.state_dict()

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.load_state_dict(state)
