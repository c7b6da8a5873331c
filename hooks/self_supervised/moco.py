"""Momentum contrast: keys by a momentum encoder, and a queue of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional

from hooks.hook import Hook
from hooks.parts.batch_norm_statistics import BatchNorm
from hooks.parts.self_supervised.gather import batch_sizes, gather
from hooks.parts.self_supervised.teacher import MomentumTeacher
from hooks.state import State


@dataclass(frozen=True)
class MoCoOutput:
    """What the loss of momentum contrast needs; all rows have length 1."""

    query: Tensor
    """Embeddings of the first view, (B, D), with gradients."""
    key: Tensor
    """Embeddings of the second view by the momentum encoder, (B, D): what each query must find."""
    queue: Tensor
    """Keys of earlier batches, (K, D): what it must not find. Changed in place once the loss is differentiated."""


@dataclass
class MoCo(MomentumTeacher, Hook):
    """Gives the loss MoCo's keys and its queue of earlier keys.

    The task's forward pass gives the embeddings of the first view (B, D), or a list that begins with them; the hook
    replaces it by `MoCoOutput`. The momentum encoder follows after each optimizer step, which gives the same keys as
    the original's update before each forward pass, and the right ones where gradients are accumulated. Where it has
    BatchNorm layers that are not synchronized, images are shuffled over ranks before it and keys put back in order
    after it, by a permutation that all ranks draw alike. The keys of all ranks enter the queue in rank order, after the
    backward pass, so that all ranks hold the same queue and none copies it. In val and test, where ranks may have
    different numbers of batches, nothing is shuffled and the queue is left alone.
    Communication: the images and keys of a batch where it shuffles, else its keys.
    Raises ValueError where the model has no such encoder.
    Source: "Momentum Contrast for Unsupervised Visual Representation Learning" (He et al., 2020), VISSL MoCoHook.
    """

    momentum: Annotated[float, Ge(0), Le(1)] = 0.999
    """How much of the momentum encoder stays at each step."""
    queue_length: Annotated[int, Gt(0)] = 65536
    """Keys in the queue; it begins with random directions."""

    collective: ClassVar[bool] = True
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_forward"})
    """In a phase's last iteration, whose batches may be of other sizes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shuffles = False
        self._queue: Tensor | None = None
        self._next = 0
        self._keys: Tensor | None = None

    def on_start(self, state: State) -> None:
        super().on_start(state)
        self._shuffles = state.world_size > 1 and any(_mixes_samples(layer) for layer in self._teacher.module.modules())

    def on_forward(self, state: State) -> None:
        output, view = state.output, state.batch[0][1]
        query = _unit(output if isinstance(output, Tensor) else output[0])
        training = state.phase == "train"
        key = self._all_keys(view, state) if training else _unit(self._teacher(view))
        queue = self._ready_queue(query)
        state.output = MoCoOutput(query, key, queue)

    def _all_keys(self, view: Tensor, state: State) -> Tensor:
        """This rank's keys; those of all ranks are kept for the queue."""
        sizes = batch_sizes(state)
        if self._shuffles:
            order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(state.iteration))
            own = torch.split(order, sizes)[state.rank]
            shuffled = gather(_unit(self._teacher(gather(view, sizes)[own.to(view.device)])), sizes)
            self._keys = torch.empty_like(shuffled)
            self._keys[order.to(view.device)] = shuffled
        else:
            self._keys = gather(_unit(self._teacher(view)), sizes)
        return torch.split(self._keys, sizes)[state.rank]

    def _ready_queue(self, like: Tensor) -> Tensor:
        if self._queue is None:
            directions = torch.randn(self.queue_length, like.shape[1], generator=torch.Generator().manual_seed(0))
            self._queue = _unit(directions)
        if self._queue.device != like.device:
            self._queue = self._queue.to(like.device)
        return self._queue

    def on_backward(self, state: State) -> None:
        """Takes the keys in place of the oldest: now that the loss is differentiated, autograd no longer needs
        these."""
        assert self._queue is not None
        assert self._keys is not None
        keys, length = self._keys[-self.queue_length :], self.queue_length
        places = (self._next + torch.arange(len(keys), device=keys.device)) % length
        self._queue[places] = keys
        self._next = (self._next + len(keys)) % length
        self._keys = None

    def on_update(self, state: State) -> None:
        self._teacher.update(self.momentum)

    def state_dict(self) -> dict[str, Any]:
        queue = {} if self._queue is None else {"queue": self._queue, "next": self._next}
        return {**super().state_dict(), **queue}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "queue" in state:
            if len(state["queue"]) != self.queue_length:
                raise ValueError(
                    f"queue_length is {self.queue_length}, but the checkpoint's queue has {len(state['queue'])} keys;"
                    " keep that number"
                )
            self._queue, self._next = state["queue"], state["next"]


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows.float(), dim=1)


def _mixes_samples(layer: nn.Module) -> bool:
    """Whether a layer's output for a sample shows which others are in the rank's batch."""
    return isinstance(layer, BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
