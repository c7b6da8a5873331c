"""The base of the SwAV hooks: codes for some views of each sample, which the loss predicts from the
others."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor, nn
from torch.nn import functional

from hooks.counts import format_count
from hooks.errors import SettingError, add_article
from hooks.hook import Hook, Priority
from hooks.interval import Interval
from hooks.needs import Needs
from hooks.self_supervised.shared.sinkhorn import assign_codes
from hooks.setup import Setup
from hooks.state import State


@dataclass(frozen=True)
class SwappedViews:
    """Input of a swapped prediction loss."""

    scores: list[Tensor]
    """Similarities of each view's embeddings to the prototypes, (B, K), with gradients."""
    codes: dict[int, Tensor]
    """Assignments of some views, (B, K) float32, by the view's index; rows sum to 1."""


@dataclass
class SwappedPrediction(Hook):
    """Base of hooks that give the loss codes for some views, from the batches of all ranks and a
    queue.

    In training, one collective per Sinkhorn iteration, of K values per assigned view. A hook
    implements `on_forward`.
    """

    prototypes: str = "prototypes"
    """Name of the prototypes in the model: a linear layer without bias."""
    assigned_views: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)] = field(
        default_factory=lambda: [0, 1]
    )
    """Indices of the views that get codes: the large crops."""
    epsilon: Annotated[float, Gt(0)] = 0.05
    """Softness of the codes."""
    iterations: Annotated[int, Ge(1)] = 3
    """Iterations of Sinkhorn-Knopp."""
    queue_length: Annotated[int, Ge(0)] = 0
    """Embeddings in the queues of all ranks together, for each assigned view; 0 means no queue."""
    queue_begin: Annotated[Interval, Needs("queue_length")] = Interval(1)
    """Epochs or optimizer steps before the queue starts to fill."""
    hard_codes_until: Interval = Interval(0)
    """Epochs or optimizer steps in which a code is one prototype, that of the largest soft
    assignment."""
    normalize_prototypes: bool = True
    """Scaling of each prototype to length 1, when the run begins and after each optimizer step."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    collective: ClassVar[bool] = True
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_queue", "_queued_views")

    def __post_init__(self) -> None:
        self._layer = nn.Linear(1, 1, bias=False)
        self._queue: Tensor | None = None
        """The newest embeddings of the assigned views on this rank, (V, n, D), oldest first."""
        self._queued_views: list[int] = []
        """Indices of these views."""

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain_need_of_output(fsdp="it normalizes unsharded prototypes")

    def on_start(self, state: State) -> None:
        if self._queued_views != self.assigned_views:
            # After a resume, the queue may be of other views.
            self._queue = None
            self._queued_views = list(self.assigned_views)
        self._layer = find_prototypes(state.module, self.prototypes)
        if state.iteration == 0:
            self.normalize(self._layer)

    @torch.no_grad()
    def normalize(self, layer: nn.Linear) -> None:
        """Scale each prototype to length 1 in place, unless `normalize_prototypes` is false."""
        if self.normalize_prototypes:
            layer.weight.copy_(functional.normalize(layer.weight, dim=1))

    def swap(
        self,
        scores: list[Tensor],
        assigned: list[Tensor],
        embeddings: list[Tensor],
        layer: nn.Linear,
        state: State,
    ) -> SwappedViews:
        """Return all scores, with the codes of the assigned views.

        In training, the codes cover the batches of all ranks and the queue, which then takes the
        embeddings.

        Args:
            scores: The scores of each view, (B, K).
            assigned: The scores of the assigned views, from which their codes are computed.
            embeddings: The embeddings of the assigned views, (B, D).
            layer: The prototypes.
            state: The state of the run.

        Returns:
            The input of the loss.
        """
        own = torch.stack(assigned).detach()
        training = state.phase == "train"
        share = self.queue_length // state.world_size
        joined = own
        if training and self._queue is not None and self._queue.shape[1] >= share:
            joined = _append_scores(own, self._queue.to(own.device), layer)

        codes = assign_codes(
            joined, self.epsilon, self.iterations, across_ranks=training and state.world_size > 1
        )
        if not self.hard_codes_until.reached(state):
            codes = functional.one_hot(codes.argmax(dim=-1), codes.shape[-1]).float()
        if training and share and self.queue_begin.reached(state):
            self._enqueue(torch.stack(embeddings).detach().float(), share)
        own_codes = codes[:, : own.shape[1]]
        return SwappedViews(scores, dict(zip(self.assigned_views, own_codes, strict=True)))

    def _enqueue(self, new: Tensor, length: int) -> None:
        """Put embeddings (V, B, D) into the queue, which keeps the newest ones."""
        if self._queue is not None:
            new = torch.cat([self._queue.to(new.device), new], dim=1)
        self._queue = new[:, -length:]


def _append_scores(scores: Tensor, queue: Tensor, layer: nn.Linear) -> Tensor:
    """Return scores (V, B, K) followed by those of the embeddings in the queue (V, n, D)."""
    with torch.autocast(scores.device.type, enabled=False):
        return torch.cat([scores.float(), queue @ layer.weight.float().t()], dim=1)


def find_prototypes(module: nn.Module, name: str) -> nn.Linear:
    """Return the model's prototypes; raises SettingError if `name` is not a linear layer without
    bias."""
    layer = dict(module.named_modules(remove_duplicate=False)).get(name)
    has_bias = layer is not None and "bias" in dict(layer.named_parameters())
    if not isinstance(layer, nn.Linear) or has_bias:
        kind = "missing" if layer is None else add_article(type(layer).__name__)
        if has_bias:
            kind += " with bias"
        raise SettingError(
            f"prototypes: '{name}' of {type(module).__name__} is {kind};"
            " expected a Linear without bias"
        )
    return layer


def split_output(output: Any, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return embeddings and scores of each view from the task's output; raises TypeError for other
    outputs."""
    match output:
        case (embeddings, scores) if len(embeddings) == len(scores) == count:
            return list(embeddings), list(scores)
    raise TypeError(
        f"forward() must return (embeddings, scores), lists of {format_count(count, 'tensor')} of"
        f" shape (B, D) and (B, K), one per view, got {type(output).__name__}"
    )
