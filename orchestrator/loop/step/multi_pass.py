"""Iterations in parts: those that go through the model several times, by turns of optimizers or by pieces of a
batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from orchestrator.loop.step.iterations import Iterations
from orchestrator.loop.step.precision import Precision
from orchestrator.loop.step.task_errors import wrong_batch_size


class MultiPassIterations(Iterations):
    """What the parts of an iteration have in common: how it begins and ends, and how an optimizer steps. Worker
    process."""

    _loss_of: Callable[..., Any]
    """The task's loss in the precision of the forward pass."""

    def _begin(self, batches: Iterator[Any]) -> tuple[Any, ...]:
        """Fetches a batch. Returns the clock's marks until there is something to go through the model."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        t_begun = t_started = mark()
        if calls["on_iteration_start"]:
            fire("on_iteration_start", state)
            t_started = mark()
        batch = next(batches)
        t_fetched = t_moved = mark()
        state.batch, state.batch_size = batch, self.task.batch_size(batch)
        if not self._on_cpu:
            state.batch = self._to_device(batch)
            t_moved = mark()
        if type(state.batch_size) is not int or state.batch_size < 0:
            raise wrong_batch_size(self.task.batch_size, state.batch_size)
        t_batch = t_moved
        if calls["on_batch"]:
            fire("on_batch", state)
            t_batch = mark()
        return t_begun, t_started, t_fetched, t_moved, t_batch

    def _pass(self, weight: float) -> tuple[Any, ...]:
        """A piece, from the forward pass to its gradients; returns the clock's marks. `weight` is its share of the
        batch's loss."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        state.output = state.forward(state.model, state.batch)
        t_forward = t_output = mark()
        if calls["on_forward"]:
            fire("on_forward", state)
            t_output = mark()
        before = dict(state.row)
        loss = self._loss_of(state.output, state.batch)
        state.loss = loss if isinstance(loss, Tensor) and not loss.ndim else self._sum_of_parts(self.task.loss, loss)
        value: Any = state.loss.item() if self._on_cpu else state.loss.detach().double()
        state.row["loss"] = value
        self.means.add("loss", value * state.batch_size, state.batch_size)
        for name in ("loss", *self._parts):
            state.row[name] = before.get(name, 0.0) + state.row[name] * weight
        if self._has_metrics:
            self._count_metrics()
        t_loss = t_counted = mark()
        if calls["on_loss"]:
            fire("on_loss", state)
            t_counted = mark()
        self.precision.scaled(state.loss if weight == 1 else state.loss * weight).backward()
        return t_forward, t_output, t_loss, t_counted, *(mark(),) * 8

    def _update(
        self, optimizer: torch.optim.Optimizer, precision: Precision, clear: Callable[[], None]
    ) -> tuple[Any, ...]:
        """Steps an optimizer, unless a hook or the scaler leaves the step out. Returns the clock's marks until its
        gradients are cleared."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        precision.unscale(optimizer)
        t_unscaled = t_measured = mark()
        if calls["on_gradients"]:
            fire("on_gradients", state)
            t_measured = mark()
        state.stepped = self._step_or_skip(optimizer, precision)
        t_stepped = t_updated = mark()
        if state.stepped and calls["on_update"]:
            fire("on_update", state)
            t_updated = mark()
        clear()
        state.forget_gradients()
        return t_unscaled, t_measured, t_stepped, t_updated

    def _end(self, ended: float, begun: Sequence[Any], parts: Sequence[Sequence[Any]]) -> float:
        """Counts the iteration and records its row, from the marks of its beginning and of each part. Returns when it
        ended."""
        state = self.state
        state.iteration += 1
        state.phase_iteration += 1
        state.samples += state.batch_size
        state.world_samples += state.batch_size * state.world_size
        state.step += state.stepped
        if self.plan.calls["on_step"]:
            self.plan.fire("on_step", state)
        times = self.clock.close_turns(state.row, ended, begun, parts)
        self.recorder.append(state.row, (state.iteration, state.step, state.samples, state.batch_size, *times))
        state.row = {}
        state.batch = state.output = state.loss = None
        return float(times[-1])
