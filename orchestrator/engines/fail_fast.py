"""Mistakes in an experiment, which end a run on Ray Train at once. Controller of Ray Train."""

from __future__ import annotations

from typing import Any

from ray.train import UserCallback

from orchestrator.engines.train_failures import first_of


class EndOnMistake(UserCallback):
    """Ends a run whose rank failed by a mistake in the experiment: new workers would only make it again."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the rank's failure where it is one; Ray Train tries again after any other."""
        failure = first_of(worker_exceptions)
        if failure.mistake:
            raise failure
