"""A round of a custom loop: the training phase between two reports. Runs in workers."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Self

from orchestrator.errors import TaskError
from orchestrator.loop.custom.custom_run import CustomRun
from orchestrator.loop.step.columns import make_columns, make_numbers


class CustomRound:
    """A round of a custom loop: a training phase with the rows that the task records, from its
    beginning, which fires `on_phase_start`, to its completion."""

    def __init__(self, run: CustomRun, began_at: float) -> None:
        self._run = run
        self._state = run.state
        self._iteration_ended = began_at
        """Moment at which the last iteration ended; at first, that at which the round began."""

    @classmethod
    def begin(cls, run: CustomRun, elapsed_s: float = 0.0) -> Self:
        """Begin a round, from which `elapsed_s` seconds have passed.

        Raises TaskError if the task has not restored the checkpoint from which the run continues.
        """
        run.check_restored()
        state = run.state
        state.begin_training_phase()
        state.elapsed_s = elapsed_s
        run.plan.fire("on_phase_start", state)
        state.elapsed_s = 0.0
        labels = {"phase": "train", "epoch": state.epoch}
        run.recorder.begin(labels, make_columns((), run.clock.columns))
        return cls(run, perf_counter() - elapsed_s)

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None:
        """End an iteration with a row, and fire `on_step`.

        Raises TaskError for a batch size that is not a number of samples.
        """
        if type(batch_size) is not int or batch_size < 0:
            raise TaskError(
                f"session.record() got batch_size={batch_size!r}; expected the number of samples,"
                " a non-negative int"
            )
        state = self._state
        state.batch_size = batch_size
        state.stepped = True
        state.complete_iteration(batch_size)
        state.record(**columns)
        self._run.plan.fire("on_step", state)

        # Saving does not count as part of an iteration.
        clock = self._run.clock
        times = clock.close(state.row, self._iteration_ended + clock.checkpoint_s, ())
        self._iteration_ended = times[-1]
        clock.checkpoint_s = 0.0
        numbers = make_numbers(
            state.iteration, state.step, state.samples, state.batch_size, (), times
        )
        self._run.recorder.append(state.row, numbers)
        state.row = {}

    def complete(self, metrics: Mapping[str, float]) -> None:
        """End the training phase with the metrics of its report; a round has at least one row."""
        state = self._state
        if state.phase_iteration == 0:
            self.record({}, 1)
        state.metrics = dict(metrics)
        self._run.cursor.epoch.complete()
        state.end_training_phase()
        self._run.plan.fire("on_phase_end", state)
        self._run.cursor.end_train_phase()
