"""Weights of losses: micro-batches and ranks count by their tokens or samples, not alike."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hooks.distributed import collectives
from hooks.state import State
from orchestrator.loop.step.batch_parts import leaves
from orchestrator.loop.task_errors import make_return_error
from orchestrator.task import Task

_TINY = torch.finfo(torch.float64).tiny


class WeighedBatches(Iterator[Any]):
    """Training batches whose losses count by the task's weights. Used in workers.

    Fetches all batches of an optimizer step before its first iteration, because the share of each
    loss depends on the weights of the others. So each gradient has its final size at once, and fp16
    needs no other scale than for a mean. Ranks exchange their sum of weights once per step, without
    waiting for a GPU.
    """

    def __init__(
        self, task: Task, state: State, batches: Iterator[Any], can_fetch: Callable[[], bool]
    ) -> None:
        self._task = task
        self._state = state
        self._batches = batches
        self._can_fetch = can_fetch
        self._waiting: deque[tuple[Any, float]] = deque()
        self._total: float | Tensor = 0.0
        """Weight of the step, of all micro-batches and ranks."""
        self.batch: Any = None
        """The current batch, before it was moved to the device."""

    def fetch_ahead(self) -> bool:
        """Fetch the next step's batches if this step has none left; collective.

        Returns whether every rank has them.
        """
        return bool(self._waiting) or self._fetch_step()

    def __next__(self) -> Any:
        if not self._waiting:
            self._fetch_step()
        self.batch, self._state.loss_weight = self._waiting.popleft()
        return self.batch

    def _fetch_step(self) -> bool:
        state = self._state
        for _ in range(count_microbatches(state)):
            if not self._can_fetch():
                self._waiting.clear()
                return False
            batch = next(self._batches)
            self._waiting.append((batch, weigh(self._task, batch)))
        own = sum((weight for _, weight in self._waiting), 0.0)
        self._total = own
        if state.world_size > 1:
            # A number in a kernel's arguments: a copy from the host would wait for the GPU.
            self._total = torch.full((), own, dtype=torch.float64, device=state.device)
            collectives.sum_across_ranks([self._total], state.world_size)
        return True

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times its share of the step.

        Gradients then add up over micro-batches, and average over ranks, to those of one large
        batch.
        """
        weight = self._state.loss_weight
        assert weight is not None
        if isinstance(self._total, Tensor):
            share = weight * self._state.world_size / self._total.clamp(min=_TINY)
            return loss * share.to(loss.dtype)
        # A product with 1 would be the same, but not free.
        return loss if weight == self._total else loss * (weight / self._total)


def count_microbatches(state: State) -> int:
    """Return the number of micro-batches in the step that begins now.

    The epoch's last step may have fewer.
    """
    return min(state.accumulate, state.phase_length - state.phase_iteration)


def weigh(task: Task, batch: Any) -> float:
    """Return the weight of a batch's loss; raises TaskError unless it is a possible number."""
    value: Any = task.weight(batch)
    try:
        weight = float(value)
    except (TypeError, ValueError, RuntimeError):
        # RuntimeError is for a tensor of several elements.
        weight = math.nan
    if weight >= 0 and math.isfinite(weight):
        return weight
    raise make_return_error(
        task.weight, "", value, "how much the batch's loss counts, a number of at least 0"
    )


def weigh_each(task: Task, state: State, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of an evaluation, and set the weight of each."""
    for batch in batches:
        state.loss_weight = weigh(task, batch)
        yield batch


def tensors_with_gradients(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output through which its parameters get gradients."""
    return [part for part in leaves(output) if isinstance(part, Tensor) and part.requires_grad]


def make_zero_loss(loss: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return a zero whose gradients are zeros, for the inputs that the loss depends on.

    The loss of a batch of weight 0 is a mean over nothing, so it and its gradients may be NaN,
    whatever its share. An input may hold infinities, such as scores of classes that are masked, and
    zero times infinity is NaN too. An optimizer does not change a parameter without a gradient, but
    decays one whose gradient is zero. A loss without a gradient, which a task may return for an
    empty batch, does not show which inputs it depends on, so all of them count.
    """
    zero = (loss * 0).detach().nan_to_num()
    used = inputs
    if loss.requires_grad and inputs:
        gradients = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        pairs = zip(inputs, gradients, strict=True)
        used = [part for part, gradient in pairs if gradient is not None]
    for part in used:
        zero = zero + (part * 0).nan_to_num().sum()
    return zero
