"""A training iteration of a single optimizer: the order of its stages, from batch to recorded row.

The stages themselves are in `stages.py` and `training_stages.py`.
"""

from collections.abc import Iterator
from typing import Any

from orchestrator.loop.spans.timestamps import UPDATE_TIMES, skip
from orchestrator.loop.step.training_runner import TrainingRunner


class IterationRunner(TrainingRunner):
    """Runner of iterations with one optimizer, which steps after the last micro-batch of each
    step."""

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one micro-batch per `next`."""
        state = self.state
        stages = self.stages
        mark = self.clock.mark
        on_cpu = stages.on_cpu
        optimizer = self._optimizer
        groups = optimizer.param_groups
        fetch = stages.make_fetch(batches)
        forward = stages.make_forward_with_loss()
        backward = stages.make_backward()
        update = stages.make_update(optimizer, self.precision)
        finish = stages.begin_rows(state.epoch, ("loss", "lr"))
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
                stages.record_learning_rates(optimizer)
            state.stepped = False
            is_last = position == microbatches
            update_times = update() if is_last else skip(UPDATE_TIMES, backward_times[-1])
            times = (*fetch_times, *forward_times, *backward_times, *update_times, mark())
            previous_end = finish(previous_end, times)
            yield
