"""Training progress of a run, within the current epoch and round. Runs in workers."""

import math
from collections.abc import Callable

from hooks.position import Position, Stage
from orchestrator.loop.loop_state import COUNTERS, LoopState


class EpochProgress:
    """Position of all ranks in the current epoch, counted in the state's counters."""

    def __init__(
        self,
        state: LoopState,
        length_after: Callable[[int], int] = lambda offset: 0,
        samples_per_iteration: int = 0,
        max_iterations: float = math.inf,
    ) -> None:
        """Make the progress of a run that has not begun.

        `length_after` returns the remaining iterations of an epoch after a number of samples of all
        ranks. `samples_per_iteration` counts the samples of all ranks; 0 if the data keeps its own
        position. Each epoch ends after `max_iterations`.
        """
        self._state = state
        self._length_of_data_after = length_after
        self._max_iterations = max_iterations
        self._samples_per_iteration = samples_per_iteration
        self._consumed_before = 0
        """Samples of this epoch that were consumed in iterations of a different size."""
        self.length = self._length_after(0)
        """Training iterations of this epoch on each rank."""

    @property
    def has_begun(self) -> bool:
        """True once samples of the epoch have been consumed."""
        return self._state.phase_iteration > 0 or self._consumed_before > 0

    def consumed(self) -> int:
        """Return the samples of this epoch that all ranks have consumed.

        Returns 0 if the data keeps its own position.
        """
        return self._state.phase_iteration * self._samples_per_iteration + self._consumed_before

    def complete(self) -> None:
        """Count the epoch that has just ended."""
        self._state.complete_epoch()
        self._consumed_before = 0
        self.length = self._length_after(0)

    def restore(self, offset: int) -> None:
        """Continue after `offset` samples of all ranks, whatever their number and batch size.

        Call it once the state's counters are restored.
        """
        self._consumed_before = 0
        self.length = self._length_after(0)
        size = self._samples_per_iteration
        if size and offset not in (0, self.consumed()):
            # Iterations had a different size. The consumed samples are a prefix of the epoch's
            # order.
            self._state.phase_iteration, self._consumed_before = divmod(offset, size)
            self.length = self._state.phase_iteration + self._length_after(offset)

    def _length_after(self, offset: int) -> int:
        """Return the remaining iterations of an epoch after `offset` samples of all ranks."""
        size = self._samples_per_iteration
        done = offset // size if size else 0
        return int(min(self._length_of_data_after(offset), self._max_iterations - done))


class RunCursor:
    """Stage of a run's current round, and its validation counters.

    A checkpoint stores them as a `Position`.
    """

    def __init__(self, state: LoopState, epoch: EpochProgress) -> None:
        self._state = state
        self.epoch = epoch
        self._stage = Stage.REPORTED
        self.eval_iterations: dict[str, int] = {}
        """Completed iterations of each val phase in this epoch."""
        self.val_iterations = 0
        """Validation iterations completed in this run."""

    @property
    def stage(self) -> Stage:
        """Stage of the current round."""
        return self._stage

    @property
    def epoch_label(self) -> int:
        """Epoch of rows and reports, from 0; between two epochs it is the previous one."""
        epoch = self._state.epoch
        return epoch if self.epoch.has_begun else max(0, epoch - 1)

    def begin_train_phase(self) -> None:
        """Begin a training phase; the first of an epoch resets its validation counters."""
        self._stage = Stage.TRAIN
        if not self.epoch.has_begun:
            self.forget_validations()

    def end_train_phase(self) -> None:
        """End a training phase; the validation follows."""
        self._stage = Stage.TRAINED

    def end_validation(self) -> None:
        """End the validation, also if none is due; the report follows."""
        self._stage = Stage.VALIDATED

    def end_round(self) -> None:
        """End the round with its report; the next one begins with a training phase."""
        self._stage = Stage.REPORTED

    def forget_validations(self) -> None:
        """Count the iterations of the epoch's validations from 0 again."""
        self.eval_iterations = {}

    def count_validation(self, phase: str, iterations: int) -> None:
        """Count the iterations of a val phase that were just run."""
        self.eval_iterations[phase] = self.eval_iterations.get(phase, 0) + iterations
        self.val_iterations += iterations

    def position(self) -> Position:
        return Position(
            **{name: getattr(self._state, name) for name in COUNTERS},
            offset=self.epoch.consumed(),
            eval_iterations=dict(self.eval_iterations),
            val_iterations=self.val_iterations,
            stage=self.stage,
        )

    def restore(self, position: Position) -> None:
        self._state.restore(position)
        self.eval_iterations = dict(position.eval_iterations)
        self.val_iterations = position.val_iterations
        self._stage = position.stage
        self.epoch.restore(position.offset)
        # A validation may come before the next training phase, and hooks read this after it.
        self._state.phase_length = self.epoch.length
