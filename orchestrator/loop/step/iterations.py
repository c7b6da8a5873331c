"""Iterations in training, evaluation and prediction: the order of their stages, from batch to
recorded row.

The stages themselves are in `stages.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from orchestrator.loop.model.gradient_sync import set_gradient_sync
from orchestrator.loop.spans.timestamps import UPDATE_TIMES, end_after_forward, skip
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.stages import IterationStages
from orchestrator.loop.step.weights import WeighedBatches, count_microbatches, weigh_each


class IterationRunner(IterationStages):
    """Runner of single iterations, stage by stage. Used in workers."""

    @classmethod
    def loop_code(cls) -> frozenset[CodeType]:
        """Return the code of the loops over batches, by which a stack tells that an iteration
        runs."""
        return frozenset([cls._train.__code__, cls.infer.__code__])

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one of a phase's batches per `next`."""
        self.weighed = batches if isinstance(batches, WeighedBatches) else None
        return self._train(batches)

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one micro-batch per `next`, and update after the last one of each step."""
        state = self.state
        mark = self.clock.mark
        on_cpu = self._on_cpu
        optimizer = self._optimizer
        groups = optimizer.param_groups
        fetch = self._make_fetch(batches)
        forward = self._make_forward(state.model, self._make_measure())
        backward = self._make_backward()
        update = self._make_update(optimizer, self.precision)
        finish = self._begin_rows(state.epoch, ("loss", "lr"))
        position = 1
        microbatches = 1
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            if state.accumulate > 1:
                position, microbatches = self._advance_microbatch(position, microbatches)
            forward_times = forward()
            backward_times = backward(microbatches)
            if on_cpu and len(groups) == 1:
                state.row["lr"] = float(groups[0]["lr"])
            else:
                self._record_learning_rates(optimizer)
            state.stepped = False
            is_last = position == microbatches
            update_times = update() if is_last else skip(UPDATE_TIMES, backward_times[-1])
            times = (*fetch_times, *forward_times, *backward_times, *update_times, mark())
            previous_end = finish(previous_end, times)
            yield

    def _advance_microbatch(self, position: int, microbatches: int) -> tuple[int, int]:
        """Return the next micro-batch's position in its step, from 1, and their number in it.

        The epoch's last step may have fewer. Ranks synchronize gradients only in the last
        micro-batch.
        """
        state = self.state
        if position < microbatches:
            position += 1
        else:
            position = 1
            microbatches = count_microbatches(state)
        state.at_step_boundary = position == microbatches
        set_gradient_sync(state.model, state.at_step_boundary)
        return position, microbatches

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

        `check_loss` may replace the function that computes the loss.
        """
        state = self.state
        task = self.task
        all_meters = list(meters)
        compute_loss = check_loss(self._compute_loss) if check_loss else self._compute_loss
        record_loss = self._make_measure(compute_loss, is_optional=True)

        def measure() -> None:
            record_loss()
            for meter in all_meters:
                meter.update(state.output, task.target(state.batch))

        if self._has_weights:
            batches = weigh_each(task, state, batches)
        return self.infer(batches, offset, epoch, measure)

    def predict(
        self, batches: Iterator[Any], offset: int, epoch: int, keep: Callable[[Any, Any], None]
    ) -> Iterator[None]:
        """Give the output for a batch of val or test, and the batch, to `keep` at each `next`."""
        state = self.state
        keep_output = self.precision.with_autocast(keep)
        return self.infer(batches, offset, epoch, lambda: keep_output(state.output, state.batch))

    def infer(
        self,
        batches: Iterator[Any],
        offset: int,
        epoch: int,
        handle_output: Callable[[], None],
    ) -> Iterator[None]:
        """Run the unwrapped module on a batch of val or test at each `next`, and handle its output.

        `offset` is the number of iterations that earlier evaluations of the phase ran. `epoch` is
        that of the rows.
        """
        fetch = self._make_fetch(batches)
        forward = self._make_forward(self.state.module, handle_output)
        finish: Callable[..., float] | None = None
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            forward_times = forward()
            if finish is None:
                # The first batch tells whether there is a loss.
                columns = ("loss",) if "loss" in self.state.row else ()
                finish = self._begin_rows(epoch, columns, offset)
            rest = end_after_forward(forward_times[-1])
            previous_end = finish(previous_end, (*fetch_times, *forward_times, *rest))
            yield
