"""The stages that iterations of training and inference have in common, from batch to recorded row:
each a function that returns the timestamps of its table in `timestamps.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from torch import Tensor, nn

from hooks.event_plan import Plan
from hooks.optimizer_name import OptimizerName
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import TaskError
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.spans.timestamps import Timestamps
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.columns import make_columns, make_numbers
from orchestrator.loop.step.metrics import PhaseMetrics
from orchestrator.loop.step.transfer import make_transfer
from orchestrator.loop.task_errors import make_return_error
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

    @property
    def precision(self) -> Precision:
        """The precision of the first optimizer's steps, and of each evaluation."""
        return next(iter(self.precisions.values()))


class Stages:
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
        self.precision = context.precision
        self.recorder = context.recorder
        self.metrics = PhaseMetrics(self.task, self.state, context.world)
        self.on_cpu = self.state.device.type == "cpu"
        self._to_device = make_transfer(self.state.device)

    @cached_property
    def compute_loss(self) -> Loss:
        """Function that computes the task's loss at the run's precision."""
        return self.precision.with_autocast(cast(Loss, self.task.loss))

    # Events

    def make_event(self, event: str) -> Callable[[], Any] | None:
        """Return a function that fires an event, and returns the timestamp at its end; None if no
        hook handles it."""
        if not self.plan.calls[event]:
            return None
        state = self.state
        fire = self.plan.fire
        mark = self.clock.mark

        def fire_event() -> Any:
            fire(event, state)
            return mark()

        return fire_event

    def fire(self, event: str, moment: Any) -> Any:
        """Fire an event, and return the timestamp at its end: `moment`, if no hook handles it."""
        if not self.plan.calls[event]:
            return moment
        self.plan.fire(event, self.state)
        return self.clock.mark()

    # From batch to loss

    def make_fetch(self, batches: Iterator[Any]) -> Callable[[], Timestamps]:
        """Return a function that fetches a batch and moves it to the device."""
        state = self.state
        batch_size = self.task.batch_size
        to_device = self._to_device
        on_cpu = self.on_cpu
        mark = self.clock.mark
        on_iteration_start = self.make_event("on_iteration_start")
        on_batch = self.make_event("on_batch")

        def fetch() -> Timestamps:
            t_begin = mark()
            t_on_iteration_start = on_iteration_start() if on_iteration_start else t_begin
            try:
                batch = next(batches)
            except StopIteration:
                raise TaskError(
                    f"the {state.phase} loader has fewer batches than its length says: it ended"
                    f" after {state.phase_iteration}"
                ) from None
            state.batch = batch
            t_fetched = mark()

            # Compute the batch size on the CPU: reading it from a GPU copy would synchronize.
            size = batch_size(batch)
            if type(size) is not int or size < 0:
                raise make_return_error(
                    batch_size, "", size, "the number of the batch's samples, a non-negative int"
                )
            state.batch_size = size
            t_moved = t_fetched
            if not on_cpu:
                state.batch = to_device(batch)
                t_moved = mark()
            t_on_batch = on_batch() if on_batch else t_moved
            return t_begin, t_on_iteration_start, t_fetched, t_moved, t_on_batch

        return fetch

    def make_forward(
        self, model: nn.Module, handle_output: Callable[[], None]
    ) -> Callable[[], Timestamps]:
        """Return a function that computes the output of the batch and handles it: in training, it
        computes the loss."""
        state = self.state
        compute_output = state.forward
        mark = self.clock.mark
        on_forward = self.make_event("on_forward")
        on_loss = self.make_event("on_loss")

        def forward() -> Timestamps:
            state.output = compute_output(model, state.batch)
            t_forward = mark()
            t_on_forward = on_forward() if on_forward else t_forward
            handle_output()
            t_loss = mark()
            t_on_loss = on_loss() if on_loss else t_loss
            return t_forward, t_on_forward, t_loss, t_on_loss

        return forward

    def make_measure(
        self, compute_loss: Loss, convert_loss: Callable[[Any], Tensor | None]
    ) -> Callable[[], None]:
        """Return a function that computes the loss and the metrics of the batch from its output.

        `convert_loss` makes a loss of what `compute_loss` returns, unless that is a number.
        """
        state = self.state
        metrics = self.metrics
        record_loss = metrics.make_record_loss()
        has_metrics = type(self.task).metrics is not Task.metrics

        def measure() -> None:
            loss = compute_loss(state.output, state.batch)
            if not isinstance(loss, Tensor) or loss.ndim:
                loss = convert_loss(loss)
            state.loss = record_loss(loss)
            if has_metrics:
                metrics.add_metrics()

        return measure

    # The row

    def begin_rows(
        self, epoch: int, cpu_columns: Sequence[str], offset: int | None = None
    ) -> Callable[..., float]:
        """Begin the rows of a phase, and return a function that ends each of its iterations.

        `cpu_columns` names the row's values that are already on the CPU. In an evaluation, `offset`
        is the number of iterations before the phase.
        """
        if not self.on_cpu:
            # Values stay tensors.
            cpu_columns = ()
        if has_weights(type(self.task)):  # a batch of weight 0 has no loss
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
            state.batch = None
            state.output = None
            state.loss = None
            return times[-1]

        return finish
