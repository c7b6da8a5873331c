"""The state of a run as the loop changes it: phases, turns, counters. Runs in workers."""

from collections.abc import Iterator
from contextlib import contextmanager

from hooks.position import Position, Stage
from hooks.state import State, Weights

COUNTERS = (
    "epoch",
    "step",
    "step_iteration",
    "iteration",
    "samples",
    "world_samples",
    "phase_iteration",
)
"""Counters of both the state and a position."""


class LoopState(State):
    """A state with the changes that only the loop makes. Hooks see it as a `State`.

    Phases, turns and evaluations are left as they are if an error ends them, so that `on_exception`
    sees where it happened.
    """

    __slots__ = ()

    # Training

    def begin_training_phase(self, length: int = 0) -> None:
        """Begin a training phase of `length` iterations, in an epoch that it may continue; 0 if the
        length is unknown."""
        self.phase = "train"
        self.phase_length = length
        self.iterations_before = self.iteration - self.phase_iteration
        self.epoch_completed = False
        self.stepped = False
        self.at_step_boundary = True
        self.between_phases = False

    def end_training_phase(self) -> None:
        """End a training phase, whether or not it has completed its epoch."""
        self.between_phases = True

    def complete_iteration(self, batch_size: int) -> None:
        """Count a training iteration, and its step if it made one."""
        self.phase_iteration += 1
        self.iteration += 1
        self.samples += batch_size
        self.world_samples += batch_size * self.world_size
        if self.stepped:
            self.step += 1
            self.step_iteration = self.iteration

    def complete_epoch(self) -> None:
        """Count the epoch that has just ended."""
        self.epoch += 1
        self.epoch_completed = True
        self.phase_iteration = 0

    def end_early(self) -> None:
        """End training before the epochs or steps of the run, and outside a step."""
        self.ended_early = True
        self.at_step_boundary = True

    def restore(self, position: Position) -> None:
        """Continue at a position in training, or after it."""
        for name in COUNTERS:
            setattr(self, name, getattr(position, name))
        is_between_epochs = position.phase_iteration == position.offset == 0
        self.phase = "train"
        self.between_phases = position.stage is not Stage.TRAIN
        self.epoch_completed = self.between_phases and is_between_epochs
        self.stepped = self.between_phases and position.iteration == position.step_iteration

    # Turns of several optimizers

    def begin_turn(self, name: str) -> None:
        """Begin the turn of an optimizer."""
        self.turn = name
        self.optimizer, self.scheduler, self.scaler = self.several[name]
        self.forget_gradients()

    def end_turn(self) -> None:
        """End the turn; between turns the state shows the first optimizer."""
        self.turn = None
        self.optimizer, self.scheduler, self.scaler = next(iter(self.several.values()))
        self.forget_gradients()

    # Evaluation

    @contextmanager
    def evaluation_phase(
        self, phase: str, length: int = 0, iterations_before: int = 0
    ) -> Iterator[None]:
        """Run a phase of val or test within `with`, which puts back the counters of the training
        phase.

        `length` is the number of its iterations, and `iterations_before` that of earlier phases of
        its kind.
        """
        of_training = self.phase_iteration, self.phase_length
        self.phase = phase
        self.stepped = False
        self.phase_iteration = 0
        self.phase_length = length
        self.iterations_before = iterations_before
        yield
        self.phase_iteration, self.phase_length = of_training

    def iterate_evaluations(self) -> Iterator[Weights]:
        """Yield each set of weights to evaluate, with its label in `evaluation` meanwhile."""
        for label, weights in self.evaluations.items():
            self.evaluation = label
            yield weights
        self.evaluation = ""
