"""Warnings of what a resume would not continue, and of what training does not train. Runs in
workers."""

from orchestrator.loop.saving.unsaved import UnsavedState
from orchestrator.loop.saving.untrained import find_unsaved_parameters, find_untrained_parameters
from orchestrator.loop.training import Training


class StateWarnings:
    """Warnings of a training's parameters and other state, each shown once."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._unsaved: UnsavedState | None = None
        """The state at the start, until its changes have been shown."""

    def begin(self) -> None:
        """Show what is wrong at the start, and remember the state, to find what changes."""
        training = self._training
        training.show(find_unsaved_parameters(training.task, training.plan, training.state))
        self._unsaved = UnsavedState(training.task, training.state, training.data, training.plan)

    def show_changes(self) -> None:
        """Show once what has changed: at the first checkpoint, or the end of the first phase."""
        if self._unsaved is None:
            return
        training = self._training
        training.show(find_untrained_parameters(training.task, training.plan, training.state))
        training.show(self._unsaved.find_changes())
        self._unsaved = None
