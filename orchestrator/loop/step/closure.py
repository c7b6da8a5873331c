"""Iterations of an optimizer that evaluates the loss several times in a step: LBFGS, SAM. Runs in
workers."""

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hooks.distributed import collectives
from orchestrator.experiment.optim.closures import needs_gradients_before
from orchestrator.loop.model.strategy import check_gradients_synced
from orchestrator.loop.step.iterations import IterationRunner, make_clear_gradients
from orchestrator.loop.step.weights import make_zero_loss, tensors_with_gradients
from orchestrator.loop.task_errors import check_loss_terms


class _StepSkipped(Exception):
    """Signal that a hook skips this step."""


class ClosureRunner(IterationRunner):
    """Runner of iterations that call `optimizer.step(closure)` on one batch, for SAM after a first
    evaluation.

    Rows, means and hooks see the first evaluation; the column `evaluations` counts all. The closure
    returns the mean loss across ranks, so a line search takes the same steps on each rank.
    """

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Make one optimizer step per `next`."""
        state, mark, calls, optimizer = (
            self.state,
            self.clock.mark,
            self.plan.calls,
            cast(Any, self._optimizer),
        )
        self._clear = make_clear_gradients(optimizer)
        evaluates_before = needs_gradients_before(type(optimizer))
        fetch, self._forward = self._make_fetch(batches), self._make_forward(state.model)
        finish = self._make_finish(state.epoch, ("loss", "lr", "evaluations"))
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
            if state.stepped and calls["on_update"]:
                self.plan.fire("on_update", state)
                t_on_update = mark()
            self._clear()
            state.forget_gradients()
            previous_end = finish(
                previous_end, (*fetch_times, *self._timestamps, t_stepped, t_on_update, mark())
            )
            yield

    @torch.enable_grad()
    def _closure(self) -> Tensor:
        state = self.state
        self._evaluations += 1
        self._clear()
        if self._evaluations == 1:
            self._evaluate_first()
            loss = self._scale(cast(Tensor, state.loss), state.output)
        else:
            output = state.forward(state.model, state.batch)
            loss = self._compute_loss(output, state.batch)
            if not isinstance(loss, Tensor):
                loss = reduce(add, check_loss_terms(self.task.loss, loss).values())
            loss = self._scale(loss, output)
            loss.backward()
        if state.world_size > 1:
            collectives.average([loss := loss.detach().clone()])
        return loss

    def _scale(self, loss: Tensor, output: Any) -> Tensor:
        """Return the loss times its share of all ranks, if the task has weights."""
        if self.weighed is None:
            return loss
        if self.state.loss_weight == 0:
            loss = make_zero_loss(loss, tensors_with_gradients(output))
        return self.weighed.scale(loss)

    def _evaluate_first(self) -> None:
        """Evaluate the loss and fire the events. Keep its timestamps until the optimizer continues,
        or is skipped."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        forward_times = self._forward()
        self._scale(cast(Tensor, state.loss), state.output).backward()
        t_local_backward = t_backward = mark()
        if self._backward_timer is not None:
            t_local_backward = self._backward_timer.take(t_backward)
            check_gradients_synced(cast(DistributedDataParallel, state.model))
        self._record_learning_rates(self._optimizer)
        if calls["on_backward"]:
            fire("on_backward", state)
        t_gradients = mark()
        if calls["on_gradients"]:
            fire("on_gradients", state)
        self._timestamps = (
            *forward_times,
            t_local_backward,
            t_backward,
            t_gradients,
            t_gradients,
            mark(),
        )
        if state.skip_reasons:
            state.skip_reasons.clear()
            raise _StepSkipped
