"""Prototypes: the directions that embeddings are assigned to, and what the SwAV hooks and losses share about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor, nn
from torch.nn import functional

from hooks.hook import NEEDS_OUTPUT, NEEDS_WHOLE_BATCHES, Priority, Setup
from hooks.interval import Interval
from hooks.parts.self_supervised import sinkhorn
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State


@dataclass(frozen=True)
class SwappedViews:
    """What a swapped prediction needs: the scores of every view, and the codes of some of them."""

    scores: list[Tensor]
    """For each view the similarities of its embeddings to the prototypes, (B, K), with gradients."""
    codes: dict[int, Tensor]
    """A view's place to its samples' soft assignments, (B, K) float32, without gradients; rows sum to 1."""


def layer(module: nn.Module, name: str) -> nn.Linear:
    """The model's prototypes: a linear layer without bias; raises ValueError where there is none of that name."""
    found = dict(module.named_modules()).get(name)
    if not isinstance(found, nn.Linear) or "bias" in dict(found.named_parameters()):
        what = (
            "nothing"
            if found is None
            else f"{type(found).__name__} with bias"
            if isinstance(found, nn.Linear)
            else type(found).__name__
        )
        raise ValueError(
            f"prototypes: '{name}' in {type(module).__name__} is {what}; a torch.nn.Linear without bias is needed"
        )
    return found


@torch.no_grad()
def normalize(prototypes: nn.Linear) -> None:
    """Gives every prototype the length 1, in place."""
    prototypes.weight.copy_(functional.normalize(prototypes.weight, dim=1))


def of_views(output: Any, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Embeddings and scores of each view, from what the task's forward pass gave; raises TypeError if it gave something
    else."""
    match output:
        case (embeddings, scores) if len(embeddings) == len(scores) == count:
            return list(embeddings), list(scores)
    raise TypeError(
        f"the task's forward pass gave {type(output).__name__} for {count} views; "
        "SwAV needs (embeddings, scores), each with one tensor per view: (B, D) and (B, K)"
    )


class Queue:
    """The newest embeddings of each assigned view on this rank, which join the batch where it is small."""

    def __init__(self) -> None:
        self._embeddings: Tensor | None = None
        self._next = 0
        self._filled = 0

    def join(self, scores: Tensor, prototypes: nn.Linear) -> Tensor:
        """Scores of the assigned views (V, B, K) with those of the queue behind them, (V, B + length, K), once it is
        full."""
        if self._embeddings is None or self._filled < self._embeddings.shape[1]:
            return scores
        with torch.autocast(scores.device.type, enabled=False):
            return torch.cat(
                [scores.float(), self._embeddings.to(scores.device) @ prototypes.weight.float().t()], dim=1
            )

    def push(self, embeddings: Tensor, length: int) -> None:
        """Takes the embeddings of the assigned views (V, B, D) in place of the oldest; the newest `length` are kept."""
        new = embeddings.detach().float()[:, -length:]
        old = self._embeddings
        if old is None or old.shape != (len(new), length, new.shape[2]):
            self._embeddings, self._next, self._filled = new.new_zeros(len(new), length, new.shape[2]), 0, 0
        else:
            self._embeddings = old.to(new.device)
        places = (self._next + torch.arange(new.shape[1], device=new.device)) % length
        self._embeddings[:, places] = new
        self._next = (self._next + new.shape[1]) % length
        self._filled = min(self._filled + new.shape[1], length)

    def state_dict(self) -> dict[str, Any]:
        """The embeddings, the next to go, and how many there are; empty before the first."""
        if self._embeddings is None:
            return {}
        return {"embeddings": self._embeddings, "next": self._next, "filled": self._filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        if state:
            self._embeddings, self._next, self._filled = state["embeddings"], state["next"], state["filled"]


@dataclass
class SwappedPrediction:
    """The part of a hook that gives the loss codes for some views, from the batches of all ranks and a queue.

    Communication in training, where there are several ranks: one collective per Sinkhorn iteration, of K values for
    each assigned view. A hook brings `on_forward`, which says what the assigned views' scores and embeddings are, and
    keeps the queue in its `rank_state_dict`.
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
    queue_begin: Interval = Interval(1)
    """Epochs or optimizer steps to complete before the queue begins to fill."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queue_length == 0:
            refuse_unread(self, "queue_length", "queue_begin")
        self._queue = Queue()

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            several_optimizers=NEEDS_OUTPUT, splits_batches=NEEDS_WHOLE_BATCHES, closure=NEEDS_WHOLE_BATCHES
        )

    def swapped(
        self, scores: list[Tensor], assigned: list[Tensor], embeddings: list[Tensor], layer: nn.Linear, state: State
    ) -> SwappedViews:
        """All scores, with the codes of the assigned views, whose scores are (B, K) and embeddings (B, D) each; in
        training the queue takes part in the codes, and then takes the embeddings."""
        training = state.phase == "train"
        own = torch.stack(assigned).detach()
        joined = self._queue.join(own, layer) if training else own
        codes = sinkhorn.codes(joined, self.epsilon, self.iterations, across_ranks=training and state.world_size > 1)
        share = self.queue_length // state.world_size
        if training and share and self.queue_begin.reached(state):
            self._queue.push(torch.stack(embeddings), share)
        return SwappedViews(scores, dict(zip(self.assigned_views, codes[:, : own.shape[1]], strict=True)))
