"""The stages of an iteration, from batch to recorded row: each a function that returns the
timestamps of its table in `timestamps.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks.event_plan import Plan
from hooks.optimizer_name import OptimizerName
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import TaskError
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.model.gradient_sync import check_gradients_synced
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.spans.timestamps import Timestamps
from orchestrator.loop.step.backward_timer import BackwardTimer
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.columns import make_columns, make_numbers
from orchestrator.loop.step.metrics import PhaseMetrics
from orchestrator.loop.step.transfer import make_transfer
from orchestrator.loop.step.weights import WeighedBatches
from orchestrator.loop.task_errors import check_has_gradient, make_return_error
from orchestrator.loop.world import World
from orchestrator.task import Task, has_weights


@dataclass(frozen=True)
class StepContext:
    """The surroundings of an iteration: the task, the state, and where events, times and rows go."""

    task: Task
    state: LoopState
    plan: Plan
    clock: SpanClock
    precisions: Mapping[OptimizerName, Precision]
    recorder: Recorder
    world: World


class IterationStages:
    """The stages of iterations: they fire an iteration's events in order, and record its row.

    PyTorch's work evicts Python objects from the CPU caches, so the cost of an iteration grows with
    the memory that it touches. Therefore the functions of the hot path are closures over their
    dependencies, skip events without hooks, and append their numbers to one array. Names that begin
    with `t_` are timestamps; the clock is read once between two events. Used in workers.
    """

    def __init__(self, context: StepContext) -> None:
        self.task = context.task
        self.state = context.state
        self.plan = context.plan
        self.clock = context.clock
        self.precisions = context.precisions
        self.precision = next(iter(context.precisions.values()))
        self.recorder = context.recorder
        self.world = context.world
        self.metrics = PhaseMetrics(self.task, self.state, self.world)
        self.microbatches = 1
        """Number of micro-batches that a training batch is split into."""
        self.weighed: WeighedBatches | None = None
        """Training batches that know their shares of a step, if the task has weights."""
        self._has_weights = has_weights(type(self.task))
        self._on_cpu = self.state.device.type == "cpu"
        self._to_device = make_transfer(self.state.device)

    @cached_property
    def _compute_loss(self) -> Loss:
        return self.precision.with_autocast(cast(Loss, self.task.loss))

    @cached_property
    def _backward_timer(self) -> BackwardTimer | None:
        model = self.state.model
        if isinstance(model, DistributedDataParallel):
            return BackwardTimer(model, self.clock)
        return None

    def _scale_loss(self, loss: Any, microbatches: int = 1) -> Tensor:
        """Return the loss times its share of the step."""
        if self.weighed is not None:
            return self.weighed.scale(loss)
        scaled: Tensor = loss / microbatches if microbatches > 1 else loss
        return scaled

    def _fire(self, event: str, moment: Any) -> Any:
        """Fire an event, and return the timestamp at its end: `moment`, if no hook handles it."""
        if not self.plan.calls[event]:
            return moment
        self.plan.fire(event, self.state)
        return self.clock.mark()

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self.state.optimizer)

    def _make_fetch(self, batches: Iterator[Any]) -> Callable[[], Timestamps]:
        """Return a function that fetches a batch and moves it to the device."""
        state = self.state
        batch_size = self.task.batch_size
        to_device = self._to_device
        on_cpu = self._on_cpu
        mark = self.clock.mark
        fire = self.plan.fire
        on_iteration_start = self.plan.calls["on_iteration_start"]
        on_batch = self.plan.calls["on_batch"]

        def fetch() -> Timestamps:
            t_begin = t_on_iteration_start = mark()
            if on_iteration_start:
                fire("on_iteration_start", state)
                t_on_iteration_start = mark()
            try:
                state.batch = batch = next(batches)
            except StopIteration:
                raise TaskError(
                    f"the {state.phase} loader has fewer batches than its length says: it ended"
                    f" after {state.phase_iteration}"
                ) from None
            t_fetched = t_moved = mark()
            # Compute the batch size on the CPU: reading it from a GPU copy would synchronize.
            state.batch_size = size = batch_size(batch)
            if type(size) is not int or size < 0:
                raise make_return_error(
                    batch_size, "", size, "the number of the batch's samples, a non-negative int"
                )
            if not on_cpu:
                state.batch = to_device(batch)
                t_moved = mark()
            t_on_batch = t_moved
            if on_batch:
                fire("on_batch", state)
                t_on_batch = mark()
            return t_begin, t_on_iteration_start, t_fetched, t_moved, t_on_batch

        return fetch

    def _make_forward(
        self, model: nn.Module, handle_output: Callable[[], None]
    ) -> Callable[[], Timestamps]:
        """Return a function that computes the output of the batch and handles it: in training, it
        computes the loss."""
        state = self.state
        compute_output = state.forward
        mark = self.clock.mark
        fire = self.plan.fire
        on_forward = self.plan.calls["on_forward"]
        on_loss = self.plan.calls["on_loss"]

        def forward() -> Timestamps:
            state.output = compute_output(model, state.batch)
            t_forward = t_on_forward = mark()
            if on_forward:
                fire("on_forward", state)
                t_on_forward = mark()
            handle_output()
            t_loss = t_on_loss = mark()
            if on_loss:
                fire("on_loss", state)
                t_on_loss = mark()
            return t_forward, t_on_forward, t_loss, t_on_loss

        return forward

    def _make_measure(
        self, compute_loss: Loss | None = None, *, is_optional: bool = False
    ) -> Callable[[], None]:
        """Return a function that computes the loss and the metrics of the batch from its output.

        `compute_loss` is the task's by default. A loss `is_optional` in an evaluation, where the
        task may return None.
        """
        state = self.state
        task = self.task
        metrics = self.metrics
        means = metrics.means
        compute = compute_loss or self._compute_loss
        has_metrics = type(task).metrics is not Task.metrics
        has_weights = self._has_weights
        on_cpu = self._on_cpu

        def compute_and_record() -> None:
            loss = compute(state.output, state.batch)
            if loss is None and is_optional:
                metrics.count_without_loss()
            elif not isinstance(loss, Tensor) or loss.ndim:
                loss = metrics.sum_terms(task.loss, loss)
            if has_weights:
                loss = metrics.weigh_loss(loss)
            elif loss is not None:
                state.row["loss"] = value = loss.item() if on_cpu else loss.detach().double()
                means.add("loss", value * state.batch_size, state.batch_size)
            state.loss = loss
            if has_metrics:
                metrics.add_metrics()

        return compute_and_record

    def _make_backward(self) -> Callable[[int], Timestamps]:
        """Return a function that adds the gradients of the batch's loss to those of its step.

        It takes the number of micro-batches in the step.
        """
        state = self.state
        scale_loss = self._scale_loss
        backpropagate = self._backpropagate
        scaler = self.precision.scaler
        timer = self._backward_timer
        model: Any = state.model
        mark = self.clock.mark
        fire = self.plan.fire
        on_backward = self.plan.calls["on_backward"]

        def backward(microbatches: int) -> Timestamps:
            loss = scale_loss(state.loss, microbatches)
            if scaler is not None:
                loss = scaler.scale(loss)
            backpropagate(loss)
            # A hook may have asked for the norm before.
            state.forget_gradients()
            t_local_backward = t_backward = t_on_backward = mark()
            if timer is not None:
                t_local_backward = timer.take(t_backward)
                check_gradients_synced(model)
            if on_backward:
                fire("on_backward", state)
                t_on_backward = mark()
            return t_local_backward, t_backward, t_on_backward

        return backward

    def _backpropagate(self, loss: Tensor) -> None:
        """Add the gradients of a loss; raises TaskError if it has none."""
        try:
            loss.backward()
        except RuntimeError:
            check_has_gradient(self.task.loss, loss)
            raise

    def _make_update(
        self, optimizer: torch.optim.Optimizer, precision: Precision
    ) -> Callable[[], Timestamps]:
        """Return a function that steps the optimizer, unless a hook or the scaler skips the step."""
        state = self.state
        scaler = precision.scaler
        clear_gradients = make_clear_gradients(optimizer)
        mark = self.clock.mark
        fire = self.plan.fire
        on_gradients = self.plan.calls["on_gradients"]
        on_update = self.plan.calls["on_update"]

        def update() -> Timestamps:
            t_unscaled = t_on_gradients = mark()
            if scaler is not None:
                scaler.unscale_(optimizer)
                state.forget_gradients()
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

    def _begin_rows(
        self, epoch: int, cpu_columns: Sequence[str], offset: int | None = None
    ) -> Callable[..., float]:
        """Begin the rows of a phase, and return a function that ends each of its iterations.

        `cpu_columns` names the row's values that are already on the CPU. In an evaluation, `offset`
        is the number of iterations before the phase.
        """
        if not self._on_cpu:
            # Values stay tensors.
            cpu_columns = ()
        if self._has_weights:  # a batch of weight 0 has no loss
            cpu_columns = [name for name in cpu_columns if name != "loss"]
        self.recorder.begin(
            {"phase": self.state.phase, "epoch": epoch},
            make_columns(cpu_columns, self.clock.columns),
        )
        return self._make_finish(cpu_columns, offset)

    def _make_finish(self, cpu_columns: Sequence[str], offset: int | None) -> Callable[..., float]:
        """Return a function that counts an iteration and records its row.

        It takes the end of the previous iteration, and the timestamps of this iteration and of each
        optimizer's turn. It returns the end of this iteration.
        """
        state = self.state
        close = self.clock.close
        append = self.recorder.append
        plan = self.plan
        on_step = plan.calls["on_step"]

        def finish(
            previous_end: float, timestamps: Timestamps, turns: Sequence[Timestamps] = ()
        ) -> float:
            size = state.batch_size
            if offset is None:
                state.complete_iteration(size)
            else:
                state.phase_iteration += 1
            # In most iterations no hook is due, which one division tells cheaper than a call.
            completed = state.iterations_before + state.phase_iteration
            if on_step and not completed % plan.strides["on_step"]:
                plan.fire("on_step", state)
            row = state.row
            times = close(row, previous_end, timestamps, turns)
            iteration = state.iteration if offset is None else offset + state.phase_iteration
            values = map(row.__getitem__, cpu_columns)
            # A checkpoint is saved after this row is on disk, so the save is timed in the next
            # iteration's row.
            numbers = make_numbers(iteration, state.step, state.samples, size, values, times)
            append(row if len(row) > len(cpu_columns) else None, numbers)
            state.row = {}
            state.batch = state.output = state.loss = None
            return times[-1]

        return finish

    def _record_learning_rates(self, optimizer: torch.optim.Optimizer, name: str = "lr") -> None:
        """Record the learning rate of each parameter group: `lr`, `lr_1` and so on."""
        for index, group in enumerate(optimizer.param_groups):
            rate = group["lr"]
            if self._on_cpu:
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
