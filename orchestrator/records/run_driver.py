"""The driver of a run: the lease to resume it, and its status."""

from __future__ import annotations

from orchestrator.records.lease import Lease, is_driven
from orchestrator.records.metadata import RunMetadata
from orchestrator.records.run_folder import ENDED, RunFolder, errors_before_start


def status_of(folder: RunFolder, run: RunMetadata | None = None) -> str:
    """Return the status of a run: that of `run.json`, or `lost` if its driver is gone."""
    run = run or folder.metadata()
    driver = run.driver
    if run.status == "running" and driver is not None:
        is_alive = driver.is_alive() if driver.is_visible() else is_driven(folder.lease_place(run))
        return "lost" if is_alive is False else "running"
    # A resume takes the lease seconds before it trains. A trial's lease is its sweep's.
    can_resume = run.status not in ("running", *ENDED) and not run.trial and folder.storage.local is not None
    return "running" if can_resume and is_driven(folder.storage, other_process=True) else run.status


@errors_before_start()
def make_lease(folder: RunFolder, *, force: bool = False) -> Lease:
    """Return the lease to resume a run, or to resume a trial's sweep."""
    return Lease(folder.lease_place(folder.metadata()), force=force)
