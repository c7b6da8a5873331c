"""MoCo: contrast with keys by a momentum encoder and a queue of earlier keys."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional

from hooks.errors import SettingError
from hooks.model.layers import BatchNorm
from hooks.self_supervised.shared.batch_sizes import gather_batch_sizes, gather_rows
from hooks.self_supervised.shared.momentum_teacher import MomentumTeacher
from hooks.state import State


@dataclass(frozen=True)
class MoCoOutput:
    """Input of MoCo's loss; all rows have unit length."""

    query: Tensor
    """Embeddings of the first view, (B, D), with gradients."""
    key: Tensor
    """Embeddings of the second view by the momentum encoder, (B, D): the positives."""
    queue: Tensor
    """Keys of earlier batches, (K, D): the negatives. Changed in place after the backward pass."""


@dataclass
class MoCo(MomentumTeacher):
    """Give MoCo's loss the keys of the batch and a queue of earlier keys.

        moco: {momentum: 0.999, queue_length: 65536}

    The task's forward pass returns the embeddings of the first view (B, D), or a list that begins
    with them; the hook replaces it by `MoCoOutput`. The momentum encoder follows after each
    optimizer step. If it has BatchNorm layers that are not synchronized, images are shuffled across
    ranks before it. The keys of all ranks enter the queue after the backward pass, so all ranks
    hold the same queue. In val and test the queue does not change. Source: "Momentum Contrast for
    Unsupervised Visual Representation Learning" (He et al., 2020), VISSL MoCoHook.
    """

    momentum: Annotated[float, Ge(0), Le(1)] = 0.999
    """Momentum of the encoder: the weight of its old parameters at each step."""
    queue_length: Annotated[int, Gt(0)] = 65536
    """Number of keys in the queue; it begins with random directions."""

    collective: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_queue", "_next")
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_forward"})
    """Only in a phase's last iteration, because batch sizes may differ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shuffles = False
        self._queue: Tensor | None = None
        self._next = 0
        self._keys: Tensor | None = None

    def on_start(self, state: State) -> None:
        super().on_start(state)
        # BatchNorm mixes the samples of a rank's batch; SyncBatchNorm those of all ranks.
        self._shuffles = state.world_size > 1 and any(
            isinstance(layer, BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
            for layer in self._teacher.module.modules()
        )

    def on_forward(self, state: State) -> None:
        view = state.batch[0][1]
        first = state.output if isinstance(state.output, Tensor) else state.output[0]
        query = _normalize(first)
        is_training = state.phase == "train"
        key = self._compute_keys(view, state) if is_training else _normalize(self._teacher(view))
        state.output = MoCoOutput(query, key, self._prepare_queue(query))

    def _compute_keys(self, view: Tensor, state: State) -> Tensor:
        """Return this rank's keys, and store the keys of all ranks for the queue."""
        sizes = gather_batch_sizes(state)
        if self._shuffles:
            generator = torch.Generator().manual_seed(state.iteration)
            order = torch.randperm(sum(sizes), generator=generator)
            local_indices = torch.split(order, sizes)[state.rank].to(view.device)
            shuffled_views = gather_rows(view, sizes)[local_indices]
            shuffled = gather_rows(_normalize(self._teacher(shuffled_views)), sizes)
            self._keys = torch.empty_like(shuffled)
            self._keys[order.to(view.device)] = shuffled
        else:
            self._keys = gather_rows(_normalize(self._teacher(view)), sizes)
        return torch.split(self._keys, sizes)[state.rank]

    def _prepare_queue(self, like: Tensor) -> Tensor:
        if self._queue is None:
            generator = torch.Generator().manual_seed(0)
            directions = torch.randn(self.queue_length, like.shape[1], generator=generator)
            self._queue = _normalize(directions)
        if self._queue.device != like.device:
            self._queue = self._queue.to(like.device)
        return self._queue

    def on_backward(self, state: State) -> None:
        """Put the keys into the queue, now that autograd no longer needs the oldest."""
        assert self._queue is not None
        assert self._keys is not None
        keys = self._keys[-self.queue_length :]
        indices = self._next + torch.arange(len(keys), device=keys.device)
        self._queue[indices % self.queue_length] = keys
        self._next = (self._next + len(keys)) % self.queue_length
        self._keys = None

    def on_update(self, state: State) -> None:
        self._teacher.update(self.momentum)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._queue is not None and len(self._queue) != self.queue_length:
            raise SettingError(
                f"queue_length: the checkpoint's queue has the length {len(self._queue)},"
                f" not {self.queue_length}"
            )


def _normalize(rows: Tensor) -> Tensor:
    return functional.normalize(rows.float(), dim=1)
