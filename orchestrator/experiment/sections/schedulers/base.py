"""The base of every scheduler of trials."""

from typing import ClassVar

from orchestrator.experiment.fields.section import Model


class Scheduler(Model):
    """The base of every scheduler. Its periods count reports that hold the sweep's metric."""

    waits_for_others: ClassVar[bool] = False
    """True if trials wait for each other, so all must have begun."""
    unshareable: ClassVar[str | None] = None
    """Why its trials cannot share a training run; None if they can."""

    @property
    def is_random(self) -> bool:
        """True if the sweep's seed matters to the scheduler."""
        return False
