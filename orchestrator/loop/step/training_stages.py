"""The stages of a training iteration, which add the backward pass and the optimizer's step to those
in `stages.py`."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from orchestrator.loop.model.gradient_sync import check_gradients_synced
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.spans.timestamps import Timestamps
from orchestrator.loop.step.backward_timer import BackwardTimer
from orchestrator.loop.step.stages import Stages, StepContext
from orchestrator.loop.step.weights import WeighedBatches
from orchestrator.loop.task_errors import check_has_gradient


class TrainingStages(Stages):
    """The stages of training iterations. Used in workers."""

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self.weighed: WeighedBatches | None = None
        """Batches of the phase that know their shares of a step, if the task has weights."""

    @cached_property
    def backward_timer(self) -> BackwardTimer | None:
        model = self.state.model
        if isinstance(model, DistributedDataParallel):
            return BackwardTimer(model, self.clock)
        return None

    def make_forward_with_loss(self) -> Callable[[], Timestamps]:
        """Return a function that computes the output of the batch, its loss and its metrics."""
        sum_terms = partial(self.metrics.sum_terms, self.task.loss)
        return self.make_forward(self.state.model, self.make_measure(self.compute_loss, sum_terms))

    def make_backward(self) -> Callable[[int], Timestamps]:
        """Return a function that adds the gradients of the batch's loss to those of its step.

        It takes the number of micro-batches in the step.
        """
        state = self.state
        scale_loss = self.scale_loss
        backpropagate = self.backpropagate
        scaler = self.precision.scaler
        timer = self.backward_timer
        model: Any = state.model
        mark = self.clock.mark
        on_backward = self.make_event("on_backward")

        def backward(microbatches: int) -> Timestamps:
            loss = scale_loss(state.loss, microbatches)
            if scaler is not None:
                loss = scaler.scale(loss)
            backpropagate(loss)
            # A hook may have asked for the norm before.
            state.forget_gradients()
            t_backward = mark()
            t_local_backward = t_backward
            if timer is not None:
                t_local_backward = timer.take(t_backward)
                check_gradients_synced(model)
            t_on_backward = on_backward() if on_backward else t_backward
            return t_local_backward, t_backward, t_on_backward

        return backward

    def scale_loss(self, loss: Any, microbatches: int = 1) -> Tensor:
        """Return the loss times its share of the step."""
        if self.weighed is not None:
            return self.weighed.scale(loss)
        scaled: Tensor = loss / microbatches if microbatches > 1 else loss
        return scaled

    def backpropagate(self, loss: Tensor) -> None:
        """Add the gradients of a loss; raises TaskError if it has none."""
        try:
            loss.backward()
        except RuntimeError:
            check_has_gradient(self.task.loss, loss)
            raise

    def make_update(
        self, optimizer: torch.optim.Optimizer, precision: Precision
    ) -> Callable[[], Timestamps]:
        """Return a function that steps the optimizer, unless a hook or the scaler skips the step."""
        state = self.state
        scaler = precision.scaler
        clear_gradients = make_clear_gradients(optimizer)
        mark = self.clock.mark
        on_gradients = self.make_event("on_gradients")
        on_update = self.make_event("on_update")

        def update() -> Timestamps:
            if scaler is not None:
                scaler.unscale_(optimizer)
                state.forget_gradients()
            t_unscaled = mark()
            t_on_gradients = on_gradients() if on_gradients else t_unscaled
            if state.skip_reasons:
                state.skip_reasons.clear()
                precision.skip()
                state.stepped = False
            elif scaler is None:
                optimizer.step()
                state.stepped = True
            else:
                state.stepped = precision.step(optimizer)
            t_stepped = mark()
            t_on_update = on_update() if on_update and state.stepped else t_stepped
            clear_gradients()
            state.forget_gradients()
            return t_unscaled, t_on_gradients, t_stepped, t_on_update

        return update

    def record_learning_rates(self, optimizer: torch.optim.Optimizer, name: str = "lr") -> None:
        """Record the learning rate of each parameter group: `lr`, `lr_1` and so on."""
        for index, group in enumerate(optimizer.param_groups):
            rate = group["lr"]
            if self.on_cpu:
                rate = float(rate)
            elif isinstance(rate, Tensor):
                # It may change in place before the row is written.
                rate = rate.clone()
            self.state.row[f"{name}_{index}" if index else name] = rate


def make_clear_gradients(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return the optimizer's `zero_grad` if it overrides PyTorch's.

    Otherwise return an equivalent without profiler label.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        return optimizer.zero_grad

    def clear() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return clear
