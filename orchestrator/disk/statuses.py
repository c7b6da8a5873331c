"""The statuses of runs and trials."""

from typing import Literal, get_args

from orchestrator.errors import DamagedFile, NewerFormat

Status = Literal["running", "finished", "stopped", "interrupted", "failed"]
"""Status that `run.json` records."""
STATUSES = (*get_args(Status), "lost")
"""Statuses that a run may show: it is lost if its driver died."""
COMPLETE = ("finished", "stopped")
"""Statuses after which there is nothing to resume."""
FAILED = ("failed", "lost", DamagedFile.status, NewerFormat.status)
"""Statuses of trials that failed, in an ended sweep."""
