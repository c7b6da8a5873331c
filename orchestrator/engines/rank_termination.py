"""How a rank that hangs is ended. Used in workers."""

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RankTermination:
    """How the hang watch ends its rank."""

    terminate: Callable[[str], None]
    """Function that ends the rank, for a reason."""
    can_end_process: bool = False
    """True if the process is the rank's own, so that faulthandler may end it while its interpreter
    lock is held."""


def _end_process(reason: str) -> None:
    """End this process at once. Its driver finds the reason in the run's folder."""
    os._exit(1)


END_PROCESS = RankTermination(_end_process, can_end_process=True)
"""Termination of a rank that has a process of its own."""
