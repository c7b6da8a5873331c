"""`scheduler: fifo`: every trial runs to its end."""

from typing import Literal

from orchestrator.experiment.sections.schedulers.base import Scheduler


class Fifo(Scheduler):
    """Every trial runs to its end."""

    type: Literal["fifo"] = "fifo"
