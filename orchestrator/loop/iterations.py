"""Iterations: what happens to one batch, in training and in evaluation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hooks.plan import Plan
from hooks.state import State
from orchestrator.loop.clock import BACKWARD, DATA_WAIT, FORWARD, HOOKS, LOSS, OPTIMIZER, TO_DEVICE, Clock
from orchestrator.loop.data import to_device
from orchestrator.loop.means import Means
from orchestrator.loop.precision import Precision
from orchestrator.loop.world import World
from orchestrator.stats.recorder import Recorder
from orchestrator.task import Task

logger = logging.getLogger("hookyard")


class Iterations:
    """Takes batches through the model, firing the events of an iteration in their order, and records a row for each.

    Worker process. The hot path: what can be known before an iteration is looked up before it.
    """

    def __init__(self, task: Task, state: State, plan: Plan, clock: Clock, precision: Precision, recorder: Recorder) -> None:
        self.task, self.state, self.plan = task, state, plan
        self.clock, self.precision, self.recorder = clock, precision, recorder
        self.means = Means()
        self._on_cpu = state.device.type == "cpu"
        self._has_metrics = type(task).metrics is not Task.metrics
        self._accumulated = 0

    def train(self, batches: Iterator[Any]) -> None:
        """One micro-batch of training, and the optimizer step where it is the last of its group."""
        state, task, lap, fire = self.state, self.task, self.clock.lap, self._fire
        fire("on_iteration_start")
        batch = next(batches)
        lap(DATA_WAIT)
        if not self._on_cpu:
            batch = to_device(batch, state.device)
            lap(TO_DEVICE)
        state.batch = batch
        state.batch_size = task.batch_size(batch)
        fire("on_batch")
        position, group = self._place_in_step()
        last = position == group - 1
        if last or state.model is state.module:
            self._forward_and_backward(group)
        else:
            with state.model.no_sync():  # type: ignore[operator]
                self._forward_and_backward(group)
        lap(BACKWARD)
        fire("on_backward")
        self._accumulated = 0 if last else position + 1
        state.stepped = last and self._update()
        state.iteration += 1
        state.phase_iteration += 1
        state.samples += state.batch_size
        state.step += state.stepped
        self._finish(state.iteration, state.epoch)

    def _forward_and_backward(self, group: int) -> None:
        """Differentiates the batch's part of its step, which has `group` micro-batches."""
        if self.precision.plain:
            self._forward_and_loss()
        else:
            with self.precision.autocast():
                self._forward_and_loss()
        self._count()
        self._fire("on_loss")
        assert self.state.loss is not None
        self.precision.backward(self.state.loss if group == 1 else self.state.loss / group)

    def _forward_and_loss(self) -> None:
        state, task = self.state, self.task
        state.output = task.forward(state.model, state.batch)
        self.clock.lap(FORWARD)
        self._fire("on_forward")
        state.loss = task.loss(state.output, state.batch)

    def _place_in_step(self) -> tuple[int, int]:
        """Which micro-batch of its optimizer step this is, and how many that step has; the epoch's last may have fewer."""
        state = self.state
        if state.accumulate == 1:
            return 0, 1
        begun = state.phase_iteration - self._accumulated
        return self._accumulated, min(state.accumulate, state.phase_length - begun)

    def _update(self) -> bool:
        """The optimizer step; False where it was left out."""
        state, optimizer = self.state, self.state.optimizer
        assert optimizer is not None
        if self.precision.scaler:
            self.precision.unscale(optimizer)
            self.clock.lap(OPTIMIZER)
        self._fire("on_gradients")
        if state.skip_reasons:
            state.skip_reasons.clear()
            self.precision.skip()
            done = False
        else:
            done = self.precision.step(optimizer)
        if done and self.plan.calls["on_update"]:
            self.clock.lap(OPTIMIZER)
            self._fire("on_update")
        optimizer.zero_grad(set_to_none=True)
        state.forget_gradients()
        self.clock.lap(OPTIMIZER)
        return done

    def evaluate(self, batches: Iterator[Any], meters: Mapping[str, Any], begun: int, epoch: int) -> None:
        """One batch of val or test, by the unwrapped module; `begun` iterations of this epoch's evaluation came before."""
        state, lap, fire = self.state, self.clock.lap, self._fire
        fire("on_iteration_start")
        batch = next(batches)
        lap(DATA_WAIT)
        state.batch = batch = to_device(batch, state.device)
        state.batch_size = self.task.batch_size(batch)
        lap(TO_DEVICE)
        fire("on_batch")
        with self.precision.autocast():
            state.output = self.task.forward(state.module, batch)
            lap(FORWARD)
            fire("on_forward")
            state.loss = self.task.loss(state.output, batch)
        for meter in meters.values():
            meter.update(state.output, self.task.target(batch))
        self._count()
        fire("on_loss")
        state.phase_iteration += 1
        self._finish(begun + state.phase_iteration, epoch)

    def _finish(self, iteration: int, epoch: int) -> None:
        """Fires `on_step` and closes the row.

        A checkpoint comes after this: it may be announced only when the rows that led to it are on disk. So the time of
        saving stands in the next iteration's `checkpoint_s`.
        """
        state = self.state
        self._fire("on_step")
        row = state.row
        row["phase"], row["epoch"], row["iteration"] = state.phase, epoch, iteration
        row["step"], row["samples"], row["batch_size"] = state.step, state.samples, state.batch_size
        self.clock.close(row)
        self.recorder.append(row)
        state.recent.append(row)
        state.row = {}
        state.batch = state.output = state.loss = None

    def _fire(self, event: str) -> None:
        if self.plan.calls[event]:
            self.plan.fire(event, self.state)
            self.clock.lap(HOOKS)

    def _count(self) -> None:
        """Adds the loss and the task's metrics of this batch to the phase's means, and the loss to the row."""
        state = self.state
        assert state.loss is not None
        on_cpu = self._on_cpu
        loss: Any = state.loss.item() if on_cpu else state.loss.detach().double()
        state.row["loss"] = loss
        self.means.add("loss", loss * state.batch_size, state.batch_size)
        if self._has_metrics:
            for name, values in self.task.metrics(state.output, state.batch).items():
                total: Any = values.detach().double().sum()
                self.means.add(name, total.item() if on_cpu else total, values.numel())
        self.clock.lap(LOSS)

    def reduce(self, prefix: str, world: World, meters: Mapping[str, Any] | None = None) -> dict[str, float]:
        """The phase's values over all ranks, as `<prefix>/<name>`, and a new beginning for the next; collective."""
        means, self.means = self.means, Means()
        values = means.reduce(world) | {name: float(meter.compute()) for name, meter in (meters or {}).items()}
        for name, value in values.items():
            if math.isnan(value):
                logger.warning("%s/%s is not a number", prefix, name)
        return {f"{prefix}/{name}": value for name, value in values.items()}
