"""Comparison of the runs or sweeps in some folders."""

from collections.abc import Sequence

from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.runs.comparison import compare_runs
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.comparison import SweepComparison, compare_sweeps
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.run_comparison import RunComparison


def compare_folders(folders: Sequence[RunFolder]) -> RunComparison | SweepComparison:
    """Compare every run with the first, or every sweep.

    Raises UsageError if there are both runs and sweeps.
    """
    kinds = ["sweep" if folder.read_metadata().sweep else "run" for folder in folders]
    if len({*kinds}) > 1:
        listed = ", ".join(
            f"{folder} is a {kind}" for folder, kind in zip(folders, kinds, strict=True)
        )
        raise UsageError(
            f"{listed}; compare runs with runs (such as a sweep's trials/trial-0000) and sweeps with sweeps"
        )
    if "sweep" in kinds:
        return compare_sweeps([Sweep(folder) for folder in folders])
    return compare_runs([Run(folder) for folder in folders])
