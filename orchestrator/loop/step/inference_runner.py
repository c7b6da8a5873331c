"""Iterations of val and test: the order of their stages, from batch to recorded row.

The stages themselves are in `stages.py`. Runs in workers.
"""

from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from orchestrator.loop.spans.timestamps import end_after_forward
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.metrics import PhaseMetrics
from orchestrator.loop.step.stages import Stages, StepContext
from orchestrator.loop.step.weights import weigh_each
from orchestrator.task import has_weights


class InferenceRunner:
    """Runner of iterations without a backward pass, which evaluate the model or predict with it."""

    def __init__(self, context: StepContext) -> None:
        self._task = context.task
        self._state = context.state
        self._clock = context.clock
        self._precision = context.precision
        self._stages = Stages(context)

    @classmethod
    def get_loop_code(cls) -> CodeType:
        """Return the code of the loop over batches, by which a stack tells that an iteration
        runs."""
        return cls._infer.__code__

    @property
    def metrics(self) -> PhaseMetrics:
        """Losses and metrics of the phase."""
        return self._stages.metrics

    def evaluate(
        self,
        batches: Iterator[Any],
        offset: int,
        epoch: int,
        meters: Iterable[Any],
        check_loss: Callable[[Loss], Loss] | None = None,
    ) -> Iterator[None]:
        """Compute the loss and the metrics of a batch of val or test at each `next`, and update the
        meters.

        `offset` is the number of iterations that earlier evaluations of the phase ran. `epoch` is
        that of the rows. `check_loss` may replace the function that computes the loss.
        """
        state = self._state
        task = self._task
        stages = self._stages
        all_meters = list(meters)
        compute_loss = check_loss(stages.compute_loss) if check_loss else stages.compute_loss
        record_loss = stages.make_measure(compute_loss, self.metrics.sum_terms_if_any)

        def measure() -> None:
            record_loss()
            for meter in all_meters:
                meter.update(state.output, task.target(state.batch))

        if has_weights(type(task)):
            batches = weigh_each(task, state, batches)
        return self._infer(batches, offset, epoch, measure)

    def predict(
        self, batches: Iterator[Any], offset: int, epoch: int, keep: Callable[[Any, Any], None]
    ) -> Iterator[None]:
        """Give the output for a batch of val or test, and the batch, to `keep` at each `next`."""
        state = self._state
        keep_output = self._precision.with_autocast(keep)
        return self._infer(batches, offset, epoch, lambda: keep_output(state.output, state.batch))

    def _infer(
        self,
        batches: Iterator[Any],
        offset: int,
        epoch: int,
        handle_output: Callable[[], None],
    ) -> Iterator[None]:
        """Run the unwrapped module on a batch at each `next`, and handle its output."""
        state = self._state
        stages = self._stages
        fetch = stages.make_fetch(batches)
        forward = stages.make_forward(state.module, handle_output)
        finish: Callable[..., float] | None = None
        previous_end = self._clock.restart()
        while True:
            fetch_times = fetch()
            forward_times = forward()
            if finish is None:
                # The first batch tells whether there is a loss.
                columns = ("loss",) if "loss" in state.row else ()
                finish = stages.begin_rows(epoch, columns, offset)
            rest = end_after_forward(forward_times[-1])
            previous_end = finish(previous_end, (*fetch_times, *forward_times, *rest))
            yield
