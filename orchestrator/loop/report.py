"""Reports, which carry the metrics of a round from the loop to its driver."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """A set of metrics at the end of a round of training and validation. All ranks report at the
    same points."""

    metrics: dict[str, Any]
    """Counters, and the metrics of the phases. They are equal on all ranks, except for metrics that
    hooks add."""
    stopped: tuple[str, ...] = field(default=())
    """Reasons for the run to end here; empty if it continues or is complete."""
    interrupted: bool = False
    """True if the run was interrupted, so it can be resumed."""
    is_final: bool = False
    """True for the last report of the run."""
    is_partial: bool = False
    """True if the run ends in the middle of a training phase, so there are no metrics of phases.

    A resumed run replaces it by the report of the whole phase.
    """
    phases: tuple[str, ...] = ("train",)
    """All phases of the run."""
    run_index: int = 0
    """Number of the run among those that share a training run, from 0."""


def produce_within(
    context: Callable[[], AbstractContextManager[Any]], reports: Generator[Report, None, None]
) -> Generator[Report, None, None]:
    """Yield reports; each is produced within a new context, which the caller does not see. An error
    that the caller throws is raised there, too."""
    while True:
        with context():
            report = next(reports, None)
        if report is None:
            return
        try:
            yield report
        except BaseException as error:
            with context():
                reports.throw(error)
            raise
