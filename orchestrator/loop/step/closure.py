"""Iterations of an optimizer that evaluates the loss several times in a step: LBFGS, SAM."""

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any, cast

import torch
from torch import Tensor

from hooks.distributed import collectives
from orchestrator.experiment.optim.closures import needs_gradients_before
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.stages import make_clear_gradients
from orchestrator.loop.step.weights import make_zero_loss, tensors_with_gradients
from orchestrator.loop.task_errors import check_has_gradient, check_loss_terms


class _StepSkipped(Exception):
    """Signal that a hook skips this step."""


class ClosureRunner(IterationRunner):
    """Runner of iterations that call `optimizer.step(closure)` on one batch.

    SAM's step follows a first evaluation. Rows, means and hooks see the first evaluation; the
    column `evaluations` counts all. The closure returns the mean loss across ranks, so a line
    search takes the same steps on each rank.
    """

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Make one optimizer step per `next`."""
        state = self.state
        mark = self.clock.mark
        on_update = self.plan.calls["on_update"]
        optimizer = cast(Any, self._optimizer)
        evaluates_before = needs_gradients_before(type(optimizer))
        self._clear = make_clear_gradients(optimizer)
        self._forward = self._make_forward(state.model)
        self._backward = self._make_backward()
        fetch = self._make_fetch(batches)
        finish = self._begin_rows(state.epoch, ("loss", "lr", "evaluations"))
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            self._evaluations = 0
            try:
                if evaluates_before:
                    self._closure()
                optimizer.step(self._closure)
                state.stepped = True
            except _StepSkipped:
                state.stepped = False
            if self._backward_timer is not None:
                self._backward_timer.take(None)
            state.row["evaluations"] = self._evaluations
            t_stepped = t_on_update = mark()
            if state.stepped and on_update:
                self.plan.fire("on_update", state)
                t_on_update = mark()
            self._clear()
            state.forget_gradients()
            times = (*fetch_times, *self._timestamps, t_stepped, t_on_update, mark())
            previous_end = finish(previous_end, times)
            yield

    @torch.enable_grad()
    def _closure(self) -> Tensor:
        state = self.state
        self._evaluations += 1
        self._clear()
        if self._evaluations == 1:
            self._evaluate_first()
            loss = self._scale_loss(state.loss)
        else:
            output = state.forward(state.model, state.batch)
            loss = self._compute_loss(output, state.batch)
            if not isinstance(loss, Tensor):
                loss = reduce(add, check_loss_terms(self.task.loss, loss).values())
            if state.loss_weight == 0:
                loss = make_zero_loss(loss, tensors_with_gradients(output))
            loss = self._scale_loss(loss)
            try:
                loss.backward()
            except RuntimeError:
                check_has_gradient(self.task.loss, loss)
                raise
        if state.world_size > 1:
            loss = loss.detach().clone()
            collectives.average([loss])
        return loss

    def _evaluate_first(self) -> None:
        """Evaluate the loss and fire the events.

        Keeps its timestamps until the optimizer continues, or is skipped.
        """
        state = self.state
        forward_times = self._forward()
        backward_times = self._backward(1)
        self._record_learning_rates(self._optimizer)
        t_unscaled = t_on_gradients = self.clock.mark()
        if self.plan.calls["on_gradients"]:
            self.plan.fire("on_gradients", state)
            t_on_gradients = self.clock.mark()
        self._timestamps = (*forward_times, *backward_times, t_unscaled, t_on_gradients)
        if state.skip_reasons:
            state.skip_reasons.clear()
            raise _StepSkipped
