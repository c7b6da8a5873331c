"""The training cursor: the stage of the current round, and the position in the current epoch. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hooks.state import State
from orchestrator.checkpoint.position import Position, Stage

_COUNTERS = ("epoch", "step", "iteration", "samples", "world_samples", "phase_iteration")
"""Counters of both the state and a position."""


class TrainingCursor:
    """The stage of the present round, and how far all ranks together are in the epoch.

    The counters are the state's. A checkpoint keeps all of this as a `Position`.
    """

    def __init__(self, state: State, epoch_length: Callable[[int], int], samples_per_iteration: int) -> None:
        """`epoch_length` returns the iterations of an epoch after a number of samples of all ranks.

        `samples_per_iteration` counts those of all ranks; 0 if the data keeps its own position.
        """
        self._state, self._length = state, epoch_length
        self._samples_per_iteration = samples_per_iteration
        self._consumed_before = 0
        """Samples of this epoch that were consumed in iterations of another size."""
        self.stage = Stage.REPORTED
        self.epoch_length = self._length(0)
        """Training iterations of this epoch on each rank."""
        self.eval_iterations: dict[str, int] = {}
        """Iterations of each phase of val completed in this epoch."""
        self.val_iterations = 0
        """Validation iterations completed in this run."""

    @property
    def epoch_label(self) -> int:
        """The epoch of rows and reports, from 0: the one under way, or the last one after its end."""
        epoch = self._state.epoch
        return epoch - 1 if self.is_between_epochs and epoch > 0 else epoch

    @property
    def is_between_epochs(self) -> bool:
        """Whether no sample of the present epoch has been consumed."""
        return self._state.phase_iteration == 0 and self._consumed_before == 0

    def consumed(self) -> int:
        """Return the samples of this epoch that all ranks have consumed; 0 if the data keeps its own position."""
        return self._state.phase_iteration * self._samples_per_iteration + self._consumed_before

    def complete_epoch(self) -> None:
        """Count the epoch that has just ended."""
        state = self._state
        state.epoch += 1
        state.epoch_completed = True
        state.phase_iteration = 0
        self._consumed_before = 0
        self.epoch_length = self._length(0)

    def follow(self, other: TrainingCursor, stage: Stage) -> None:
        """Take over the place of the leader's training. Each run counts its own validation."""
        self.stage, self.epoch_length, self._consumed_before = stage, other.epoch_length, other._consumed_before

    def position(self) -> Position:
        """Return the run's position, for a checkpoint."""
        return Position(
            **{name: getattr(self._state, name) for name in _COUNTERS},
            offset=self.consumed(),
            eval_iterations=dict(self.eval_iterations),
            val_iterations=self.val_iterations,
            stage=self.stage,
            stepped=self._state.stepped,
        )

    def restore(self, position: Position) -> None:
        """Continue at a position, which may be of another number of ranks or batch size."""
        state = self._state
        for name in _COUNTERS:
            setattr(state, name, getattr(position, name))
        state.epoch_completed = position.stage is not Stage.TRAIN and position.phase_iteration == position.offset == 0
        state.stepped = position.stage is not Stage.TRAIN and position.stepped
        state.phase = "train"
        self.restore_evaluated(position.eval_iterations, position.val_iterations)
        self.stage = position.stage
        if self._samples_per_iteration and position.offset not in (0, self.consumed()):
            # Iterations had another size. What was consumed is a prefix of the epoch's order.
            state.phase_iteration, self._consumed_before = divmod(position.offset, self._samples_per_iteration)
            self.epoch_length = state.phase_iteration + self._length(position.offset)

    def restore_evaluated(self, eval_iterations: Mapping[str, int], val_iterations: int) -> None:
        """Restore a rank's counts of validation: by phase in this epoch, and in the whole run."""
        self.eval_iterations, self.val_iterations = dict(eval_iterations), val_iterations
