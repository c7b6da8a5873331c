"""The finding on a run that failed or lost its driver."""

import pandas as pd

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.doctor.finding import Finding
from orchestrator.tables.query import TRAINING, Rows

_RESUME = "hookyard resume RUN"


def find_failure(folder: RunFolder, rows: Rows) -> Finding | None:
    """Return the finding on a run that failed or lost its driver; None for other runs."""
    metadata = folder.read_metadata()
    status = find_status(folder, metadata)
    if status == "lost":
        sentence = "the run is lost: its driver died before it could write how the run ended"
        return _make_finding(status, sentence, _RESUME)
    if status != "failed":
        return None

    lines = (metadata.error or "").strip().splitlines()
    message = lines[0] if lines else "without an error message"
    advice = _RESUME
    if metadata.is_user_error:
        advice = f"fix the task, or edit experiment.yaml in the run's folder, then {advice}"
    iteration = _find_failed_iteration(folder, rows)
    if iteration is not None:
        advice += f"; hookyard replay RUN --iteration {iteration} repeats it"
    return _make_finding(status, f"the run failed: {message}", advice)


def _make_finding(status: str, sentence: str, advice: str) -> Finding:
    # The weight is more than that of any other finding.
    return Finding("failure", sentence, {"status": status}, "hookyard show RUN", advice, weight=3.0)


def _find_failed_iteration(folder: RunFolder, rows: Rows) -> int | None:
    """Return the iteration that failed, which is the one after the last row; None if none did.

    A run whose last row ends an epoch failed after it: in a hook, in validation, or while saving.
    """
    if not rows.total:
        return None
    recorded = rows.aggregate({"last": "max(iteration)"}, where=f"{TRAINING} and rank = 0")
    last = recorded["last"].iloc[0]
    if pd.isna(last):
        return None

    attempts = folder.read_attempts()
    epoch_iterations = attempts[-1].epoch_iterations if attempts else None
    if epoch_iterations and int(last) % epoch_iterations == 0:
        return None
    return int(last) + 1
