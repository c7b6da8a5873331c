"""Iterations of an optimizer that evaluates the loss several times in a step: LBFGS, SAM."""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import Any, cast

import torch
from torch import Tensor

from hooks.distributed import collectives
from orchestrator.experiment.optim.closures import needs_gradients_before
from orchestrator.loop.spans.timestamps import Timestamps
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.loop.step.training_stages import make_clear_gradients
from orchestrator.loop.step.weights import make_zero_loss, tensors_with_gradients
from orchestrator.loop.task_errors import require_loss_terms


class _StepSkipped(Exception):
    """Signal that a hook skips this step."""


class ClosureRunner(TrainingRunner):
    """Runner of iterations that call `optimizer.step(closure)` on one batch.

    SAM's step follows a first evaluation. Rows, means and hooks see the first evaluation; the
    column `evaluations` counts all. The closure returns the mean loss across ranks, so a line
    search takes the same steps on each rank.
    """

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._evaluations = 0
        """Number of evaluations in the current step."""
        self._first_times: Timestamps = ()
        """Timestamps of the first of them."""

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Make one optimizer step per `next`."""
        state = self.state
        mark = self.clock.mark
        optimizer = cast(Any, self._optimizer)
        evaluates_before = needs_gradients_before(type(optimizer))
        clear_gradients = make_clear_gradients(optimizer)
        closure = self._make_closure(clear_gradients)
        fetch = self.stages.make_fetch(batches)
        finish = self.stages.begin_rows(state.epoch, ("loss", "lr", "evaluations"))
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            self._evaluations = 0
            try:
                if evaluates_before:
                    closure()
                optimizer.step(closure)
                state.stepped = True
            except _StepSkipped:
                state.stepped = False
            if self.stages.backward_timer is not None:
                self.stages.backward_timer.take(None)
            state.row["evaluations"] = self._evaluations
            t_stepped = mark()
            t_on_update = self.stages.fire("on_update", t_stepped) if state.stepped else t_stepped
            clear_gradients()
            state.forget_gradients()
            times = (*fetch_times, *self._first_times, t_stepped, t_on_update, mark())
            previous_end = finish(previous_end, times)
            yield

    def _make_closure(self, clear_gradients: Callable[[], None]) -> Callable[[], Tensor]:
        """Return the function that the optimizer calls: it computes the loss of the batch and its
        gradients."""
        state = self.state
        forward = self.stages.make_forward_with_loss()
        backward = self.stages.make_backward()

        @torch.enable_grad()
        def closure() -> Tensor:
            self._evaluations += 1
            clear_gradients()
            if self._evaluations == 1:
                self._first_times = (*forward(), *backward(1), *self._end_first_evaluation())
                self._skip_if_requested()
                loss = self.stages.scale_loss(state.loss)
            else:
                loss = self._evaluate_again()
            return self._average(loss)

        return closure

    def _end_first_evaluation(self) -> Timestamps:
        """Record the learning rates and fire `on_gradients`; return the timestamps of both."""
        self.stages.record_learning_rates(self._optimizer)
        t_unscaled = self.clock.mark()
        return t_unscaled, self.stages.fire("on_gradients", t_unscaled)

    def _skip_if_requested(self) -> None:
        """Raise _StepSkipped if a hook skips this step."""
        reasons = self.state.skip_reasons
        if reasons:
            reasons.clear()
            raise _StepSkipped

    def _evaluate_again(self) -> Tensor:
        """Compute the loss and its gradients for other weights, which no hook and no row sees."""
        state = self.state
        output = state.forward(state.model, state.batch)
        loss = self.stages.compute_loss(output, state.batch)
        if not isinstance(loss, Tensor):
            loss = reduce(add, require_loss_terms(self.task.loss, loss).values())
        if state.loss_weight == 0:
            loss = make_zero_loss(loss, tensors_with_gradients(output))
        loss = self.stages.scale_loss(loss)
        self.stages.backpropagate(loss)
        return loss

    def _average(self, loss: Tensor) -> Tensor:
        """Return the mean of the loss across ranks; collective."""
        if self.state.world_size == 1:
            return loss
        mean = loss.detach().clone()
        collectives.average([mean])
        return mean
