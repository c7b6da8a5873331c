"""What the SwAV hooks have in common: their parameters, the queue, and the step from scores to codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor, nn

from hooks.hook import Priority
from hooks.parts.self_supervised import prototypes, sinkhorn
from hooks.parts.self_supervised.prototypes import SwappedViews
from hooks.rhythm import Rhythm
from hooks.state import State


@dataclass
class SwappedPrediction:
    """The part of a hook that gives the loss codes for some views, from the batches of all ranks and a queue.

    Communication in training, where there are several ranks: one collective per Sinkhorn iteration, of K values for each
    assigned view. A hook brings `on_forward`, which says what the assigned views' scores and embeddings are, and keeps
    the queue in its `rank_state_dict`.
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

    def swapped(
        self, scores: list[Tensor], assigned: list[Tensor], embeddings: list[Tensor], layer: nn.Linear, state: State
    ) -> SwappedViews:
        """All scores, with the codes of the assigned views, whose scores are (B, K) and embeddings (B, D) each; in training
        the queue takes part in the codes, and then takes the embeddings."""
        training = state.phase == "train"
        own = torch.stack(assigned).detach()
        joined = self._queue.join(own, layer) if training else own
        codes = sinkhorn.codes(joined, self.epsilon, self.iterations, across_ranks=training and state.world_size > 1)
        share = self.queue_length // state.world_size
        if training and share and self.queue_begin.reached(state):
            self._queue.push(torch.stack(embeddings), share)
        return SwappedViews(scores, dict(zip(self.assigned_views, codes[:, : own.shape[1]], strict=True)))
