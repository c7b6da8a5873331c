"""The hooks that record a training which is to be compared with others, and save the checkpoints
from which it continues."""

from collections.abc import Mapping
from typing import ClassVar

from hooks import Hook, Priority, State
from hooks.loop_services import get_checkpoint_name
from hooks.private_torch import tree_leaves
from orchestrator.experiment.optim.timeline import divide_up
from orchestrator.replay.digests import digest, digest_state
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.task import Task

MAX_EPOCHS = 3
"""Largest number of epochs. Schedules have the length of the whole run."""


class TrainingRecorder(Hook):
    """Records the samples, losses and states of a training."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    observes: ClassVar[bool] = True

    def __init__(self, task: Task, hooks: Mapping[str, Hook]) -> None:
        self.record = TrainingRecord()
        self._task = task
        self._hooks = hooks

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.iteration in _list_saves(state):
            self.record.state[state.iteration] = digest_state(state, self._task, self._hooks)

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.record.samples[state.iteration + 1] = digest(tree_leaves(state.batch))

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            assert state.loss is not None
            self.record.losses[state.iteration] = state.loss.item()


class CheckpointSaver(Hook):
    """Saves the checkpoints from which training is to continue."""

    observes: ClassVar[bool] = True

    def __init__(self) -> None:
        self.checkpoints: dict[int, str] = {}
        """Names of the checkpoints, by iteration."""

    def on_step(self, state: State) -> None:
        # At the end of a phase the loop saves after it.
        if state.phase_iteration < state.phase_length:
            self._save(state)

    def on_phase_end(self, state: State) -> None:
        self._save(state)

    def _save(self, state: State) -> None:
        if state.phase == "train" and state.iteration in _list_saves(state):
            state.request_checkpoint("verify")

    def on_saved(self, state: State, path: str) -> None:
        self.checkpoints[state.iteration] = get_checkpoint_name(path)
        assert state.checkpoints is not None
        state.checkpoints.retain("verify", list(self.checkpoints.values()))


def _list_saves(state: State) -> tuple[int, ...]:
    """Return the iterations at which to save, in a training phase: in the middle of an epoch, if
    there is a step to end there, and at its end. Another epoch follows, unless there is only
    one."""
    length = state.phase_length
    steps_per_epoch = divide_up(length, state.accumulate)
    epochs = state.max_epochs or divide_up(state.max_steps or 0, steps_per_epoch)
    begin = max(0, min(epochs, MAX_EPOCHS) - 2) * length
    middle = begin + max(1, steps_per_epoch // 2) * state.accumulate
    end = begin + length
    if state.max_steps is not None:
        end = min(end, state.max_steps * state.accumulate)
    return (middle, end) if middle < end else (end,)
