"""Engines: what trains a run, and the next one after it. Each is a module; `run --engine` and a sweep's `engine` name
one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.gang import Gang
from orchestrator.engines.session import Assignment
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.loop.report import Report


class Engine(Protocol):
    """Trains one run at a time, report by report. In the process that drives it: a run's driver, or a trial's
    process."""

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Begin an attempt at a run. `resolved` is its experiment, whose task and hooks nothing has trained with yet;
        a rank that is not given one makes its own."""

    def next(self) -> Report | None:
        """Trains up to the next report and returns rank 0's; None when the run is over. Raises RunError where it
        failed."""

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path, where trials pause."""

    def drop(self, member: int) -> None:
        """Ends one of the runs that share a training, between two reports."""

    def end(self) -> None:
        """Ends the run, wherever it stands between two reports; returns when nothing of it is trained any more."""


ENGINES: Mapping[str, type[Gang] | type[TrainJobs]] = {"gang": Gang, "train": TrainJobs}
"""Those that a trial can choose among. Their `bundles` are what Tune reserves for one, its own process first."""
