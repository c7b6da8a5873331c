"""Who drives a run: the right to go on with it, and whether somebody does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from orchestrator.errors import HookyardError, UsageError
from orchestrator.records.lease import Lease, is_driven
from orchestrator.records.metadata import RunMetadata
from orchestrator.records.process import Process
from orchestrator.records.run_folder import RunFolder, nothing_started
from orchestrator.storage.stored_data import checked


def status_of(folder: RunFolder, run: RunMetadata | None = None) -> str:
    """A run's status from its `run.json`: `running` where a process is about to go on with it, `lost` where its driver
    is gone."""
    run = run or folder.metadata()
    taker, driver = run.taken_up_by and checked(run.taken_up_by, Process), run.driver
    if taker and taker.is_visible() and taker.is_alive():
        return "running"
    if run.status != "running" or driver is None:
        return run.status
    is_alive = driver.is_alive() if driver.is_visible() else is_driven(folder.lease_place(run))
    return "lost" if is_alive is False else "running"


@nothing_started()
def lease_of(folder: RunFolder, *, force_lease: bool = False) -> Lease:
    """The right to go on with a run, of a trial with its sweep's. Raises UsageError where its claims are gone
    and `run.json` says that it is driven."""
    around = folder.lease_place(folder.metadata())
    if is_driven(around) is None:
        _refuse_if_driven(folder, force_lease)
    return Lease(around, force_lease=force_lease)


def _refuse_if_driven(folder: RunFolder, force_lease: bool) -> None:
    metadata = folder.metadata()
    driver = metadata.driver
    if driver is None or metadata.status != "running":
        return
    if driver.is_visible() and driver.is_alive():
        raise UsageError(f"{folder} is still running (process {driver.pid}); end that first")
    if not driver.is_visible() and not force_lease:
        raise UsageError(
            f"{folder} is run by {driver}, and whether that still lives cannot be seen from here. End it there; where"
            f" it is gone: hookyard resume {shlex.quote(str(folder))} --force-lease"
        )


@contextmanager
def being_taken_up(folder: RunFolder) -> Iterator[None]:
    """Within it a run is running for whoever looks, though it takes seconds until this process, which has its lease,
    drives it; where that refuses or dies, it is what it was before."""
    with nothing_started():
        folder.update(taken_up_by=asdict(Process.this()))
    try:
        yield
    except BaseException:
        with suppress(HookyardError, OSError):  # what failed before is the failure that is told
            _be_left(folder)
        raise
    _be_left(folder)


def _be_left(folder: RunFolder) -> None:
    if folder.metadata().taken_up_by:
        folder.update(taken_up_by=None)
