"""Iterations in training and in evaluation: the order of their stages, from batch to recorded row.

The stages themselves are in `stages.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.loop.model.strategy import set_gradient_sync
from orchestrator.loop.spans import BACKWARD_TIMES, UPDATE_TIMES, skip
from orchestrator.loop.step.collective_calls import Loss
from orchestrator.loop.step.stages import IterationStages
from orchestrator.loop.step.weights import WeighedBatches, count_microbatches, weigh_each


class IterationRunner(IterationStages):
    """Runner of single iterations, stage by stage. Used in workers."""

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
        forward = self._make_forward(state.model)
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
            update_times = (
                update() if position == microbatches else skip(UPDATE_TIMES, backward_times[-1])
            )
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
            fetch_times = fetch()
            forward_times = forward()
            if finish is None:
                # The first batch tells whether the task has a loss here.
                columns = ("loss",) if "loss" in self.state.row else ()
                finish = self._begin_rows(epoch, columns, offset)
            end = forward_times[-1]
            rest = (*skip(BACKWARD_TIMES, end), *skip(UPDATE_TIMES, end), end)
            previous_end = finish(previous_end, (*fetch_times, *forward_times, *rest))
            yield
