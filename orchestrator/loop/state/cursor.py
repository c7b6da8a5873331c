"""The training cursor: where a run stands in its rounds, and in the epoch under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hooks.state import State
from orchestrator.checkpoint.position import Position, Stage
from orchestrator.config.sections.experiment import Experiment
from orchestrator.loop.world import World

_COUNTERS = ("epoch", "step", "iteration", "samples", "world_samples", "phase_iteration")
"""What the state and a position both count."""


class Epochs(Protocol):
    """What is asked of the training data."""

    by_index: bool
    """Whether a place in an epoch is a number of samples, from which any number of ranks can go on."""

    def length(self, offset: int = 0) -> int:
        """This rank's batches in an epoch, without the first `offset` samples of all ranks."""


class TrainingCursor:
    """The stage of the present round, and how far all ranks together are in the epoch. Worker process.

    The counters themselves are the state's. What of all this a checkpoint keeps is a `Position`.
    """

    def __init__(self, experiment: Experiment, state: State, train: Epochs, world: World) -> None:
        self._state, self._train = state, train
        self._samples_per_iteration = experiment.batch_size * world.world_size
        self._consumed_before = 0
        """Samples of the present epoch consumed before `phase_iteration` began to count: not 0 after a change of their
        size."""
        self.stage = Stage.REPORTED
        self.epoch_length = train.length()
        """Training iterations of the present epoch on each rank, another than a whole one's after such a change."""
        self.eval_iterations: dict[str, int] = {}
        """Iterations of each phase of val completed since the present epoch began."""
        self.val_iterations = 0
        """Validation iterations completed since the run began."""

    @property
    def epoch_label(self) -> int:
        """The epoch that rows and reports belong to, from 0: the one under way, or the last one after its end."""
        epoch = self._state.epoch
        return epoch - 1 if self.is_between_epochs and epoch > 0 else epoch

    @property
    def is_between_epochs(self) -> bool:
        """Whether nothing of the present epoch has been trained on. Samples alone may tell: larger batches than before
        may have left no whole iteration."""
        return self._state.phase_iteration == 0 and self._consumed_before == 0

    def consumed(self) -> int:
        """Samples of the present epoch that all ranks together have consumed; 0 where the data keeps its own place."""
        if not self._train.by_index:
            return 0
        return self._state.phase_iteration * self._samples_per_iteration + self._consumed_before

    def complete_epoch(self) -> None:
        """Counts the epoch that has just ended."""
        state = self._state
        state.epoch += 1
        state.epoch_completed = True
        state.phase_iteration = 0
        self._consumed_before = 0
        self.epoch_length = self._train.length()

    def follow(self, other: TrainingCursor, stage: Stage) -> None:
        """Puts the run where another one has trained to, with which it shares that; each counts its own validation."""
        self.stage, self.epoch_length, self._consumed_before = stage, other.epoch_length, other._consumed_before

    def position(self) -> Position:
        """Where the run stands now."""
        return Position(
            **{name: getattr(self._state, name) for name in _COUNTERS},
            offset=self.consumed(),
            eval_iterations=dict(self.eval_iterations),
            val_iterations=self.val_iterations,
            stage=self.stage,
            stepped=self._state.stepped,
        )

    def restore(self, position: Position) -> None:
        """Puts the run where another attempt stood, of as many ranks or not, with batches as large or not."""
        state = self._state
        for name in _COUNTERS:
            setattr(state, name, getattr(position, name))
        state.epoch_completed = position.stage is not Stage.TRAIN and position.phase_iteration == position.offset == 0
        state.stepped = position.stage is not Stage.TRAIN and position.stepped
        state.phase = "train"
        self.restore_evaluated(position.eval_iterations, position.val_iterations)
        self.stage = position.stage
        if position.offset not in (0, self.consumed()):
            self._continue_epoch_at(position.offset)

    def restore_evaluated(self, eval_iterations: Mapping[str, int], val_iterations: int) -> None:
        """Takes up the iterations of evaluation that a rank had: by phase in the present epoch, and of validation since
        the run began."""
        self.eval_iterations, self.val_iterations = dict(eval_iterations), val_iterations

    def _continue_epoch_at(self, offset: int) -> None:
        """Goes on in an epoch that iterations of another size began: what was consumed is a prefix of the epoch's
        order."""
        self._state.phase_iteration, self._consumed_before = divmod(offset, self._samples_per_iteration)
        self.epoch_length = self._state.phase_iteration + self._train.length(offset)
