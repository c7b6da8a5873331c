"""Attempts that are lost, which a run's log tells of. Controller of Ray Train."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ray
from ray.train import UserCallback

from orchestrator.engines.rank_failures import loss_line
from orchestrator.engines.train_failures import first_of
from orchestrator.errors import HookyardError
from orchestrator.records.run_folder import RunFolder


class TellLoss(UserCallback):
    """Tells the driver, in one line, which rank an attempt was lost with, and where it was; Ray Train starts another."""

    def __init__(self, mailbox: str, location: str) -> None:
        self._mailbox, self._location = mailbox, location

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Sends the line, and does not wait. Where that cannot be, the run goes on all the same."""
        with suppress(HookyardError, OSError, ValueError):
            line = loss_line(first_of(worker_exceptions), RunFolder(self._location).attempts())
            ray.get_actor(self._mailbox).post.remote(("line", line))
