"""The status of a job, on a Ray cluster or in Slurm."""

from dataclasses import dataclass

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""Statuses after which a job does not change."""


@dataclass(frozen=True)
class JobStatus:
    """State of a job."""

    job: str
    status: str
    """PENDING, RUNNING, or one of ENDED."""
    message: str
    exit_code: int | None
    """Exit code of the job's process; None while it runs, or if it never started."""
    entrypoint: str
