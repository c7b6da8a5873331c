"""Iterations: the stages from batch to recorded row, in training and in evaluation."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import add, itemgetter
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks.plan import Plan
from hooks.state import State
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.rows.rows import Layout
from orchestrator.errors import TaskError
from orchestrator.loop.model.strategy import check_gradients_synced, set_gradient_sync
from orchestrator.loop.model.torch_settings import Precision
from orchestrator.loop.span_clock import BackwardTimer, Clock, Column
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.metrics import Means, reduce_phase
from orchestrator.loop.step.transfer import make_transfer
from orchestrator.loop.step.weights import (
    WeighedBatches,
    count_microbatches,
    make_zero_loss,
    tensors_with_gradients,
    weigh_each,
)
from orchestrator.loop.task_errors import check_loss_terms, check_metrics, unexpected
from orchestrator.loop.world import World
from orchestrator.task import Task, has_weights
from orchestrator.user_code import find_source_location

COUNTERS = ("iteration", "step", "samples", "batch_size")
"""Counters, the first columns of every iteration's row."""

_log = logging.getLogger("hookyard")

Timestamps = tuple[Any, ...]
"""Timestamps of one iteration, in order."""


def iteration_columns(values: Sequence[str], times: Mapping[str, Column]) -> Layout:
    """Return a function for each column of the iteration table: counters, `values`, then the
    clock's times."""
    counters = {name: partial(_get_counter, index) for index, name in enumerate(COUNTERS)}
    value_columns = {
        name: itemgetter((slice(None), len(COUNTERS) + index)) for index, name in enumerate(values)
    }
    first = len(counters) + len(value_columns)
    time_columns = {name: partial(_get_time, first, column) for name, column in times.items()}
    return {**counters, **value_columns, **time_columns}


def _get_counter(index: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return numbers[:, index].astype(np.int64)


def _get_time(first: int, column: Column, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return column(numbers[:, first:])


class IterationRunner:
    """Runner of single iterations: fires the events of an iteration in order, and records its row.
    Runs in a worker.

    PyTorch's work evicts Python objects from the CPU caches, so the cost of an iteration grows with
    the memory that it touches. Therefore the functions of the hot path are closures over their
    dependencies, skip events without hooks, and append their numbers to one array. Names that begin
    with `t_` are timestamps; the clock is read once between two events.
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
        self.samples_without_loss = 0
        """Number of samples of this evaluation for which loss() returned None."""
        self._has_warned_of_nan = False
        self.microbatches = 1
        """Number of micro-batches that a training batch is split into."""
        self._on_cpu = state.device.type == "cpu"
        self._to_device = make_transfer(state.device)
        self._compute_loss = self.precision.with_autocast(cast(Callable[..., Any], task.loss))
        self._has_metrics = type(task).metrics is not Task.metrics
        self._has_weights = has_weights(type(task))
        self.weighed: WeighedBatches | None = None
        """Training batches that know their shares of a step, if the task has weights."""
        self._loss_terms: Collection[str] = ()

    @cached_property
    def _backward_timer(self) -> BackwardTimer | None:
        model = self.state.model
        return (
            BackwardTimer(model, self.clock) if isinstance(model, DistributedDataParallel) else None
        )

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one micro-batch per `next`, and step the optimizer after the last one of each
        optimizer step."""
        state, precision, optimizer, mark = (
            self.state,
            self.precision,
            self._optimizer,
            self.clock.mark,
        )
        scaler, timer, groups, on_cpu = (
            precision.scaler,
            self._backward_timer,
            optimizer.param_groups,
            self._on_cpu,
        )
        on_backward, fire = self.plan.calls["on_backward"], self.plan.fire
        fetch, forward = self._make_fetch(batches), self._make_forward(state.model)
        update, finish = (
            self._make_update(optimizer, precision),
            self._make_finish(state.epoch, ("loss", "lr")),
        )
        weighed, position, microbatches_in_step, previous_end = (
            self.weighed,
            1,
            1,
            self.clock.restart(),
        )
        while True:
            fetch_times = fetch()
            if state.accumulate > 1:
                position, microbatches_in_step = self._advance_microbatch(
                    position, microbatches_in_step
                )
            forward_times = forward()
            loss = cast(Tensor, state.loss)
            if weighed is not None:
                loss = weighed.scale(loss)
            elif microbatches_in_step > 1:
                loss = loss / microbatches_in_step
            (loss if scaler is None else scaler.scale(loss)).backward()
            t_local_backward = t_backward = t_gradients = mark()
            if timer is not None:
                t_local_backward = timer.take(t_backward)
                check_gradients_synced(cast(DistributedDataParallel, state.model))
            if on_backward:
                fire("on_backward", state)
                t_gradients = mark()
            if on_cpu and len(groups) == 1:
                state.row["lr"] = float(groups[0]["lr"])
            else:
                self._record_learning_rates(optimizer)
            state.stepped = False
            update_times = update() if position == microbatches_in_step else (t_gradients,) * 4
            times = (
                *fetch_times,
                *forward_times,
                t_local_backward,
                t_backward,
                t_gradients,
                *update_times,
                mark(),
            )
            previous_end = finish(previous_end, times)
            yield

    def evaluate(
        self,
        batches: Iterator[Any],
        meters: Mapping[str, Any],
        offset: int,
        epoch: int,
        check_loss: Callable[[Loss], Loss] | None = None,
    ) -> Iterator[None]:
        """Evaluate the unwrapped module on a batch of val or test at each `next`.

        `offset` is the number of evaluation iterations that earlier phases of this epoch ran.
        `check_loss` may replace the function that computes the loss.
        """
        if self._has_weights:
            batches = weigh_each(self.task, self.state, batches)
        fetch = self._make_fetch(batches)
        forward = self._make_forward(self.state.module, meters, check_loss)
        finish: Callable[..., float] | None = None
        previous_end = self.clock.restart()
        while True:
            fetch_times, forward_times = fetch(), forward()
            if finish is None:
                finish = self._make_finish(
                    epoch, ("loss",) if "loss" in self.state.row else (), offset
                )
            previous_end = finish(
                previous_end, (*fetch_times, *forward_times, *[forward_times[-1]] * 8)
            )
            yield

    # The stages of an iteration, as functions that return timestamps

    def _make_fetch(self, batches: Iterator[Any]) -> Callable[[], Timestamps]:
        """Return a function that begins an iteration: it fetches a batch and moves it to the
        device."""
        state, batch_size, to_device, on_cpu = (
            self.state,
            self.task.batch_size,
            self._to_device,
            self._on_cpu,
        )
        fire, mark, calls = self.plan.fire, self.clock.mark, self.plan.calls
        on_iteration_start, on_batch = calls["on_iteration_start"], calls["on_batch"]

        def fetch() -> Timestamps:
            t_begin = t_started = mark()
            if on_iteration_start:
                fire("on_iteration_start", state)
                t_started = mark()
            try:
                state.batch = batch = next(batches)
            except StopIteration:
                message = f"the {state.phase} loader has fewer batches than its length says: it ended after"
                raise TaskError(f"{message} {state.phase_iteration}") from None
            t_fetched = t_moved = mark()
            # Compute the batch size on the CPU: reading it from a GPU copy would synchronize.
            state.batch_size = size = batch_size(batch)
            if type(size) is not int or size < 0:
                raise unexpected(
                    batch_size, "", size, "the number of the batch's samples, a non-negative int"
                )
            if not on_cpu:
                state.batch = to_device(batch)
                t_moved = mark()
            t_on_batch = t_moved
            if on_batch:
                fire("on_batch", state)
                t_on_batch = mark()
            return t_begin, t_started, t_fetched, t_moved, t_on_batch

        return fetch

    def _make_forward(
        self,
        model: nn.Module,
        meters: Mapping[str, Any] | None = None,
        check_loss: Callable[[Loss], Loss] | None = None,
    ) -> Callable[[], Timestamps]:
        """Return a function that computes the output, the loss and the metrics of the batch."""
        state, task, has_metrics = self.state, self.task, self._has_metrics
        compute_loss = check_loss(self._compute_loss) if check_loss else self._compute_loss
        fire, mark, calls, means, on_cpu = (
            self.plan.fire,
            self.clock.mark,
            self.plan.calls,
            self.means,
            self._on_cpu,
        )
        compute, on_forward, on_loss = state.forward, calls["on_forward"], calls["on_loss"]
        has_weights = self._has_weights
        all_meters = list((meters or {}).values())

        def forward() -> Timestamps:
            state.output = compute(model, state.batch)
            t_forward = t_on_forward = mark()
            if on_forward:
                fire("on_forward", state)
                t_on_forward = mark()
            loss = compute_loss(state.output, state.batch)
            if loss is None and meters is not None:
                self._go_without_loss()
            elif not isinstance(loss, Tensor) or loss.ndim:
                loss = self._sum_terms(task.loss, loss)
            state.loss = loss
            if has_weights:
                self._weigh_loss(loss)
            elif loss is not None:
                state.row["loss"] = value = loss.item() if on_cpu else loss.detach().double()
                means.add("loss", value * state.batch_size, state.batch_size)
            for meter in all_meters:
                meter.update(state.output, task.target(state.batch))
            if has_metrics:
                self._add_metrics()
            t_loss = t_on_loss = mark()
            if on_loss:
                fire("on_loss", state)
                t_on_loss = mark()
            return t_forward, t_on_forward, t_loss, t_on_loss

        return forward

    def _make_update(
        self, optimizer: torch.optim.Optimizer, precision: Precision
    ) -> Callable[[], Timestamps]:
        """Return a function that steps the optimizer, unless a hook or the scaler skips the
        step."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        on_gradients, on_update, scaler = (
            calls["on_gradients"],
            calls["on_update"],
            precision.scaler,
        )
        clear_gradients = make_clear_gradients(optimizer)

        def update() -> Timestamps:
            t_unscaled = t_on_gradients = mark()
            if scaler is not None:
                scaler.unscale_(optimizer)
                t_unscaled = t_on_gradients = mark()
            if on_gradients:
                fire("on_gradients", state)
                t_on_gradients = mark()
            if state.skip_reasons:
                state.skip_reasons.clear()
                precision.skip()
                state.stepped = False
            elif scaler is None:
                optimizer.step()
                state.stepped = True
            else:
                state.stepped = precision.step(optimizer)
            t_stepped = t_on_update = mark()
            if state.stepped and on_update:
                fire("on_update", state)
                t_on_update = mark()
            clear_gradients()
            state.forget_gradients()
            return t_unscaled, t_on_gradients, t_stepped, t_on_update

        return update

    def _make_finish(
        self, epoch: int, cpu_columns: Sequence[str], offset: int | None = None
    ) -> Callable[..., float]:
        """Start recording a phase, and return a function that counts an iteration and records its
        row.

        The function takes the end of the previous iteration, and the timestamps of this iteration
        and of each optimizer's turn. It returns the end of this iteration. `cpu_columns` names the
        row's values that are already on the CPU. In an evaluation, `offset` is the number of
        iterations before the phase.
        """
        state, plan, clock = self.state, self.plan, self.clock
        cpu_columns = cpu_columns if self._on_cpu else ()  # on a GPU values stay tensors
        if self._has_weights:  # a batch of weight 0 has no loss
            cpu_columns = [name for name in cpu_columns if name != "loss"]
        layout = iteration_columns(cpu_columns, clock.columns)
        self.recorder.begin({"phase": state.phase, "epoch": epoch}, layout)
        fire, on_step, close, append = (
            plan.fire,
            plan.calls["on_step"],
            clock.close,
            self.recorder.append,
        )

        def finish(
            previous_end: float, timestamps: Timestamps, turns: Sequence[Timestamps] = ()
        ) -> float:
            size = state.batch_size
            state.phase_iteration += 1
            if offset is None:
                state.iteration += 1
                state.samples += size
                state.world_samples += size * state.world_size
                if state.stepped:
                    state.step += 1
                    state.step_iteration = state.iteration
            if on_step:
                fire("on_step", state)
            row = state.row
            times = close(row, previous_end, timestamps, turns)
            iteration = state.iteration if offset is None else offset + state.phase_iteration
            values = map(row.__getitem__, cpu_columns)
            # A checkpoint is saved after this row is on disk, so the save is timed in the next
            # iteration's row.
            numbers = (iteration, state.step, state.samples, size, *values, *times)
            append(row if len(row) > len(cpu_columns) else None, numbers)
            state.row = {}
            state.batch = state.output = state.loss = None
            return times[-1]

        return finish

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self.state.optimizer)

    def _advance_microbatch(self, position: int, microbatches_in_step: int) -> tuple[int, int]:
        """Return the next micro-batch's position in its optimizer step, from 1, and the number of
        them in that step.

        The epoch's last step may have fewer. Ranks synchronize gradients only in the last
        micro-batch.
        """
        state = self.state
        if position < microbatches_in_step:
            position += 1
        else:
            position, microbatches_in_step = 1, count_microbatches(state)
        state.at_step_boundary = position == microbatches_in_step
        set_gradient_sync(state.model, state.at_step_boundary)
        return position, microbatches_in_step

    def _sum_terms(self, method: Callable[..., Any], loss: Any) -> Tensor:
        """Record each loss term as a column and a mean, and return their sum."""
        terms = check_loss_terms(method, loss)
        for name, term in terms.items():
            self._record_loss(self.state.column(name), term)
        self._loss_terms = terms.keys()
        return reduce(add, terms.values())

    @property
    def loss_count(self) -> float:
        """Weight of the batch's loss in the mean of the phase."""
        state = self.state
        return state.batch_size if state.loss_weight is None else state.loss_weight

    def _record_loss(self, name: str, loss: Tensor) -> None:
        """Record a loss or a term of one as a column and in its mean, unless the batch has weight
        0."""
        state = self.state
        if state.loss_weight == 0:
            return
        count = self.loss_count
        value: Any = loss.item() if self._on_cpu else loss.detach().double()
        state.row[name] = value
        self.means.add(name, value * count, count)

    def _weigh_loss(self, loss: Tensor | None) -> None:
        """Record the loss of a batch with a weight; a batch of weight 0 trains nothing."""
        state = self.state
        if loss is None:
            return
        self._record_loss("loss", loss)
        if state.loss_weight == 0:
            state.loss = make_zero_loss(loss, tensors_with_gradients(state.output))

    def _go_without_loss(self) -> None:
        """Count a batch of val or test for which loss() returns None; raises TaskError if an
        earlier one has a loss."""
        self.samples_without_loss += self.state.batch_size
        if self.means.has("loss"):
            self._raise_partial_loss()

    def _raise_partial_loss(self) -> NoReturn:
        loss, phase = self.task.loss, self.state.phase
        raise TaskError(
            f"loss() returns None for some batches of {phase}, and a loss for others; return a loss for all of them or"
            f" for none{find_source_location(loss)}"
        )

    def _add_metrics(self) -> None:
        metrics, samples = (
            self.task.metrics(self.state.output, self.state.batch),
            self.state.batch_size,
        )
        for name, values in check_metrics(self.task.metrics, metrics, samples).items():
            if name == "loss" or name in self._loss_terms:
                where = find_source_location(self.task.metrics)
                raise TaskError(
                    f"metrics() and loss() both return '{name}'; rename one of them{where}"
                )
            total: Any = values.detach().double().sum()
            self.means.add(name, total.item() if self._on_cpu else total, samples)

    def _record_learning_rates(self, optimizer: torch.optim.Optimizer, name: str = "lr") -> None:
        """Record the learning rate of each parameter group: `lr`, `lr_1` and so on."""
        for index, group in enumerate(optimizer.param_groups):
            # Copy a rate that is a tensor, because it may change in place before the row is
            # written.
            lr = group["lr"]
            value = float(lr) if self._on_cpu else lr.clone() if isinstance(lr, Tensor) else lr
            self.state.row[f"{name}_{index}" if index else name] = value

    def reduce_metrics(
        self, prefix: str, world: World, meters: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Return the phase's metrics across all ranks, as `<prefix>/<name>`, and reset the means;
        collective."""
        if self.samples_without_loss and self.means.has("loss"):
            self._raise_partial_loss()
        means, self.means = self.means, Means()
        metrics = reduce_phase(self.task, prefix, means, meters or {}, world)
        nan = next((name for name, value in metrics.items() if math.isnan(value)), None)
        if nan and world.is_master and not self._has_warned_of_nan:
            self._has_warned_of_nan = True
            _log.warning(
                "%s is NaN in epoch %d; set hooks.nan_guard to stop at the first NaN",
                nan,
                self.state.epoch,
            )
        return metrics


def make_clear_gradients(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return the optimizer's `zero_grad` if it overrides PyTorch's, otherwise an equivalent without
    profiler label."""
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        return optimizer.zero_grad

    def clear() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return clear
