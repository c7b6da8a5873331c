"""Iterations: what happens to one batch, in training and in evaluation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add, itemgetter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hooks.hook import WITHIN_ITERATION
from hooks.plan import Call, Plan
from hooks.state import State
from orchestrator.errors import RunError
from orchestrator.loop.clock.backward_timer import BackwardTimer
from orchestrator.loop.clock.span_clock import Clock, Column
from orchestrator.loop.model.strategy import check_exchanged, exchange_gradients
from orchestrator.loop.step.means import Means
from orchestrator.loop.step.meters import measured, refuse_different
from orchestrator.loop.step.precision import Precision
from orchestrator.loop.step.task_errors import loss_parts, of_kind, wrong_batch_size, wrong_metric
from orchestrator.loop.step.transfer import mover
from orchestrator.loop.world import World
from orchestrator.stats.write.recorder import Recorder
from orchestrator.stats.write.rows import Layout
from orchestrator.task import Task

logger = logging.getLogger("hookyard")

COUNTERS = ("iteration", "step", "samples", "batch_size")
"""The numbers with which the row of every iteration begins."""


def iteration_columns(read: Sequence[str], times: Mapping[str, Column]) -> Layout:
    """The columns of iterations, whose numbers are counters, what was `read`, and the clock's."""
    counted = {name: partial(_counter, index) for index, name in enumerate(COUNTERS)}
    single = {name: itemgetter((slice(None), len(COUNTERS) + index)) for index, name in enumerate(read)}
    first = len(counted) + len(single)
    return {**counted, **single, **{name: partial(_of_times, first, made) for name, made in times.items()}}


def _counter(index: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return numbers[:, index].astype(np.int64)


def _of_times(first: int, made: Column, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return made(numbers[:, first:])


class Iterations:
    """Takes batches through the model, firing the events of an iteration in their order, and records a row for each.

    Worker process. The hot path: what torch does between two lines of ours puts our objects out of the processor's
    caches, so an iteration costs what it touches. Therefore a phase is a generator that keeps what it needs in its
    frame, fires no event that no hook wants, and leaves a line of numbers in one array. Between two events the clock
    is read once: the names beginning with `t_` are its marks.
    """

    def __init__(
        self,
        task: Task,
        state: State,
        plan: Plan,
        clock: Clock,
        precisions: Mapping[str, Precision],
        recorder: Recorder,
        world: World,
    ) -> None:
        self.task, self.state, self.plan = task, state, plan
        self.clock, self.precisions, self.recorder, self.world = clock, precisions, recorder, world
        self.precision = next(iter(precisions.values()))
        self.means = Means()
        self.microbatches = 1
        """Pieces that a training batch is gone through in, where memory takes no more."""
        self._backward_timer = (
            BackwardTimer(state.model, clock) if isinstance(state.model, DistributedDataParallel) else None
        )
        self._on_cpu = state.device.type == "cpu"
        self._to_device = mover(state.device)
        self._parts: Collection[str] = ()
        """What the loss is the sum of, where the task says it."""
        self._has_metrics = type(task).metrics is not Task.metrics
        state.recent = recorder.recent

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Trains on a micro-batch at each `next`, and makes the optimizer step where it is the last of its group."""
        state, task, clock, precision, optimizer = (
            self.state,
            self.task,
            self.clock,
            self.precision,
            self.state.optimizer,
        )
        assert optimizer is not None
        forward, loss_of = state.forward, precision.autocasting(cast(Callable[..., Any], task.loss))
        fire, mark, record, means, on_cpu = self.plan.fire, clock.mark, self.recorder.append, self.means, self._on_cpu
        on_iteration_start, on_batch, on_forward, on_loss, on_backward, on_gradients, on_update, on_step = self._calls()
        scaler, groups, clear_gradients = precision.scaler, optimizer.param_groups, clearing(optimizer)
        backward_timer, to_device = self._backward_timer, self._to_device
        self._begin_rows(state.epoch, "loss", "lr")
        position, group, ended = 1, 1, clock.restart()
        while True:
            t_begun = t_started = mark()
            if on_iteration_start:
                fire("on_iteration_start", state)
                t_started = mark()
            batch = next(batches)
            t_fetched = t_moved = mark()
            # Of the batch on the host, as what looks into it would wait for the device.
            state.batch, state.batch_size = batch, task.batch_size(batch)
            if not on_cpu:
                state.batch = to_device(batch)
                t_moved = mark()
            if type(state.batch_size) is not int or state.batch_size < 0:
                raise wrong_batch_size(task.batch_size, state.batch_size)
            t_batch = t_moved
            if on_batch:
                fire("on_batch", state)
                t_batch = mark()
            if state.accumulate > 1:
                position, group = self._position_in_step(position, group)
            state.output = forward(state.model, state.batch)
            t_forward = t_output = mark()
            if on_forward:
                fire("on_forward", state)
                t_output = mark()
            state.loss = loss_of(state.output, state.batch)
            if not isinstance(state.loss, Tensor) or state.loss.ndim:
                state.loss = self._sum_of_parts(task.loss, state.loss)
            loss: Any = state.loss.item() if on_cpu else state.loss.detach().double()
            state.row["loss"] = loss
            means.add("loss", loss * state.batch_size, state.batch_size)
            if self._has_metrics:
                self._count_metrics()
            t_loss = t_counted = mark()
            if on_loss:
                fire("on_loss", state)
                t_counted = mark()
            share = state.loss if group == 1 else state.loss / group
            (share if scaler is None else precision.scaled(share)).backward()
            t_own = t_backward = t_gradients = mark()
            if backward_timer is not None:
                t_own = backward_timer.take(t_backward)
                check_exchanged(cast(DistributedDataParallel, state.model))
            if on_backward:
                fire("on_backward", state)
                t_gradients = mark()
            t_unscaled = t_measured = t_stepped = t_updated = t_gradients
            # As a number now, as a rate that is a tensor may be changed in place before the row is closed.
            lr = float(groups[0]["lr"]) if on_cpu else math.nan
            if len(groups) > 1 or not on_cpu:
                self._record_rates(optimizer)
            state.stepped = False
            if position == group:
                if scaler is not None:
                    precision.unscale(optimizer)
                    t_unscaled = t_measured = mark()
                if on_gradients:
                    fire("on_gradients", state)
                    t_measured = mark()
                if state.skip_reasons or scaler is not None:
                    state.stepped = self._step_or_skip(optimizer, precision)
                else:
                    optimizer.step()
                    state.stepped = True
                t_stepped = t_updated = mark()
                if state.stepped and on_update:
                    fire("on_update", state)
                    t_updated = mark()
                clear_gradients()
                if on_gradients or on_update:
                    state.forget_gradients()
            state.iteration += 1
            state.phase_iteration += 1
            state.samples += state.batch_size
            state.world_samples += state.batch_size * state.world_size
            state.step += state.stepped
            t_cleared = mark()
            if on_step:
                fire("on_step", state)
            marks = (
                t_begun,
                t_started,
                t_fetched,
                t_moved,
                t_batch,
                t_forward,
                t_output,
                t_loss,
                t_counted,
                t_own,
                t_backward,
                t_gradients,
                t_unscaled,
                t_measured,
                t_stepped,
                t_updated,
                t_cleared,
            )
            times = clock.close(state.row, ended, marks)
            ended = times[-1]
            place = state.iteration, state.step, state.samples, state.batch_size
            if on_cpu:
                record(state.row if len(state.row) > 1 else None, (*place, loss, lr, *times))
            else:
                record(state.row, (*place, *times))
            # A checkpoint comes after this: it may be announced only when the rows that led to it are on disk. So the
            # time of saving stands in the next iteration's `checkpoint_s`.
            state.row = {}
            state.batch = state.output = state.loss = None
            yield

    def evaluate(self, batches: Iterator[Any], meters: Mapping[str, Any], begun: int, epoch: int) -> Iterator[None]:
        """Evaluates a batch of val or test at each `next`, by the unwrapped module; `begun` iterations of this epoch's
        evaluation came before the phase."""
        state, task, clock, precision = self.state, self.task, self.clock, self.precision
        forward, loss_of = state.forward, precision.autocasting(cast(Callable[..., Any], task.loss))
        fire, mark, record, to_device = self.plan.fire, clock.mark, self.recorder.append, self._to_device
        on_iteration_start, on_batch, on_forward, on_loss, *_, on_step = self._calls()
        self._begin_rows(epoch, "loss")
        ended = clock.restart()
        while True:
            t_begun = t_started = mark()
            if on_iteration_start:
                fire("on_iteration_start", state)
                t_started = mark()
            batch = next(batches)
            t_fetched = mark()
            state.batch, state.batch_size = to_device(batch), task.batch_size(batch)
            if type(state.batch_size) is not int or state.batch_size < 0:
                raise wrong_batch_size(task.batch_size, state.batch_size)
            t_moved = t_batch = mark()
            if on_batch:
                fire("on_batch", state)
                t_batch = mark()
            state.output = forward(state.module, state.batch)
            t_forward = t_output = mark()
            if on_forward:
                fire("on_forward", state)
                t_output = mark()
            state.loss = loss_of(state.output, state.batch)
            if not isinstance(state.loss, Tensor) or state.loss.ndim:
                state.loss = self._sum_of_parts(task.loss, state.loss)
            for meter in meters.values():
                meter.update(state.output, task.target(state.batch))
            loss: Any = state.loss.item() if self._on_cpu else state.loss.detach().double()
            state.row["loss"] = loss
            self.means.add("loss", loss * state.batch_size, state.batch_size)
            if self._has_metrics:
                self._count_metrics()
            t_loss = t_counted = mark()
            if on_loss:
                fire("on_loss", state)
                t_counted = mark()
            state.phase_iteration += 1
            if on_step:
                fire("on_step", state)
            marks = (t_begun, t_started, t_fetched, t_moved, t_batch, t_forward, t_output, t_loss, *[t_counted] * 9)
            times = clock.close(state.row, ended, marks)
            ended = times[-1]
            place = begun + state.phase_iteration, state.step, state.samples, state.batch_size
            record(state.row, (*place, loss, *times) if self._on_cpu else (*place, *times))
            state.row = {}
            state.batch = state.output = state.loss = None
            yield

    def _begin_rows(self, epoch: int, *read: str) -> None:
        """Says what the rows of a phase are. On a device, what is read of an iteration stays a tensor and no number."""
        labels = {"phase": self.state.phase, "epoch": epoch}
        self.recorder.begin(labels, iteration_columns(read if self._on_cpu else (), self.clock.columns))

    def _position_in_step(self, position: int, group: int) -> tuple[int, int]:
        """Which micro-batch of its optimizer step comes after the one at `position` of `group`, counted from 1, and how
        many that step has; the epoch's last may have fewer. Ranks exchange gradients in the last one alone."""
        state = self.state
        if position < group:
            position += 1
        else:
            position, group = 1, min(state.accumulate, state.phase_length - state.phase_iteration)
        exchange_gradients(state.model, position == group)
        return position, group

    def _sum_of_parts(self, method: Callable[..., Any], loss: Any) -> Tensor:
        """The sum of a loss's parts, which are columns and means of their own; raises RunError where it has none."""
        parts = loss_parts(method, loss)
        self._record_parts(parts)
        return reduce(add, parts.values())

    def _record_parts(self, parts: Mapping[str, Tensor]) -> None:
        for name, part in parts.items():
            value: Any = part.item() if self._on_cpu else part.detach().double()
            self.state.row[self.state.column(name)] = value
            self.means.add(self.state.column(name), value * self.state.batch_size, self.state.batch_size)
        self._parts = parts.keys()

    def _count_metrics(self) -> None:
        """Adds the task's metrics of this batch to the phase's means."""
        samples = self.state.batch_size
        metrics = self.task.metrics(self.state.output, self.state.batch)
        if type(metrics) is not dict:
            of_kind(self.task.metrics, metrics, Mapping, "a mapping of names to one value for each sample")
        for name, values in metrics.items():
            if name in self._parts:
                raise RunError(
                    f"metrics() gives '{name}', and so does loss(): both would be the mean {self.state.phase}/{name};"
                    " call one of them otherwise"
                )
            if not isinstance(values, Tensor) or values.shape != (samples,):
                raise wrong_metric(self.task.metrics, name, values, samples)
            total: Any = values.detach().double().sum()
            self.means.add(name, total.item() if self._on_cpu else total, samples)

    def _record_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Puts the learning rates that no number of the row holds into it: `lr_1` and on, and on a device `lr` too."""
        for index, group in enumerate(optimizer.param_groups):
            if index or not self._on_cpu:
                lr = group["lr"]
                self.state.row[f"lr_{index}" if index else "lr"] = lr.clone() if isinstance(lr, Tensor) else lr

    def _calls(self) -> list[tuple[Call, ...]]:
        """The hooks' calls of each event of an iteration: empty for those that no hook wants."""
        return [self.plan.calls[event] for event in WITHIN_ITERATION]

    def _step_or_skip(self, optimizer: torch.optim.Optimizer, precision: Precision) -> bool:
        """The optimizer step; False where it was left out."""
        if not self.state.skip_reasons:
            return precision.step(optimizer)
        self.state.skip_reasons.clear()
        precision.skip()
        return False

    def reduce(self, prefix: str, world: World, meters: Mapping[str, Any] | None = None) -> dict[str, float]:
        """The phase's values over all ranks, as `<prefix>/<name>`, and a new beginning for the next; collective."""
        means, self.means = self.means, Means()
        of_meters = {name: measured(name, meter) for name, meter in (meters or {}).items()}
        states, of_ranks = zip(*world.gather((means.state_dict(), of_meters)), strict=True)
        values = Means.over_ranks(states)
        for name, numbers in of_ranks[0].items():
            refuse_different(self.task, prefix, name, [per_rank.get(name, {}) for per_rank in of_ranks])
            if twice := numbers.keys() & values.keys():
                raise RunError(
                    f"meters() gives '{name}', and {prefix}/{min(twice)} is there by loss(), metrics() or another"
                    " meter; call one of them otherwise"
                )
            values |= numbers
        for name, value in values.items():
            if math.isnan(value):
                logger.warning("%s/%s is not a number", prefix, name)
        return {f"{prefix}/{name}": value for name, value in values.items()}


def clearing(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """What sets an optimizer's gradients to none: its own `zero_grad` where it has one, else the same without the label
    that torch's makes for a profiler, which costs many times what clearing does."""
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        return optimizer.zero_grad

    def clear() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return clear
