"""The report: the metrics of a round, from the loop to its driver."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """One set of metrics at the end of each round of training and validation, on every rank at the same places."""

    metrics: dict[str, Any]
    """Counters and the values of the phases. All ranks have the same, apart from what hooks add."""
    checkpoint: str | None = None
    """The newest stored checkpoint."""
    stopped: tuple[str, ...] = field(default=())
    """Why the run ends here, if something asked for it."""
    interrupted: bool = False
    """True if the run was asked from outside to stop, and can be resumed."""
    is_final: bool = False
    """True for the last report of the run."""
    is_partial: bool = False
    """True if the run ends in the middle of training, so that the metrics hold no values of a phase."""
    phases: tuple[str, ...] = ("train",)
    """All phases of the run."""
    run_index: int = 0
    """Number of the run among those that share a training run, from 0."""


def make_within(
    context: Callable[[], AbstractContextManager[Any]], reports: Generator[Report, None, None]
) -> Generator[Report, None, None]:
    """Yield reports, each made within a context that is left while the caller has the report."""
    try:
        while True:
            with context():
                report = next(reports, None)
            if report is None:
                return
            yield report
    finally:
        with context():
            reports.close()
