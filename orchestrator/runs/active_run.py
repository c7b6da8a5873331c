"""A run that is being trained, as its driver knows it."""

from dataclasses import dataclass

from hooks.loop_services import Display
from orchestrator.disk.lease import Lease
from orchestrator.engines.assignment import Assignment
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.process.interrupts import Interrupts
from orchestrator.runs.alerts import Alerts


@dataclass(frozen=True)
class ActiveRun:
    """A run that this driver trains, and what the driver's user sees and decides of it."""

    assignment: Assignment
    resolved: ResolvedExperiment
    display: Display
    alerts: Alerts
    interrupts: Interrupts
    lease: Lease

    def is_stop_requested(self) -> bool:
        """Return whether the run should save and end. Raises LeaseLost if another driver has taken
        it."""
        self.lease.check()
        return self.interrupts.requested
