"""The check of a running sweep's trials against its constraints. Used in the driver."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.errors import DamagedFile
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.tables.constraints import Constraints, read_measured_cells
from orchestrator.tables.trial_record import TrialRecord


@dataclass(frozen=True)
class Feasibility:
    """Result of the check of an ended trial."""

    excesses: Sequence[float] = ()
    """By how much the trial is beyond each limit; 0 or less where it is not."""
    broken: str | None = None
    """Which constraints it violates, or why that is unknown; None if it satisfies all."""


class FeasibilityCheck:
    """Check of ended trials against the sweep's constraints. Without any, it reads nothing."""

    def __init__(self, sweep: RunFolder, settings: SweepSettings) -> None:
        self._sweep = sweep
        self._objectives = settings.objectives
        self._constraints = Constraints(settings.constraints)

    def check(self, trial: TrialRecord) -> Feasibility:
        """Check a trial by what its record says."""
        if not self._constraints:
            return Feasibility()
        cells = read_measured_cells(trial, self._sweep, self._objectives)
        return Feasibility(
            self._constraints.measure(cells), self._constraints.describe_broken(cells)
        )

    def check_folder(self, number: int) -> Feasibility:
        """Check a trial by what its folder says. Of one with a damaged file nothing is known, so it
        is infeasible."""
        if not self._constraints:
            return Feasibility()
        folder = trial_folder(self._sweep.location, number)
        try:
            record = TrialRecord.read(folder, self._objectives)
        except DamagedFile as error:
            return Feasibility(self._constraints.measure({}), str(error))
        return self.check(record)
