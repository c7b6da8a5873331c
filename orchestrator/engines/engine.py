"""The protocol of engines, and the engines that trials can choose."""

from collections.abc import Mapping
from typing import Protocol

from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.gang import Gang
from orchestrator.engines.session import Assignment
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.loop.report import Report


class Engine(Protocol):
    """Protocol of engines, which train one run at a time. Used in a run's driver or in a trial's process."""

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Begin an attempt of a run. Ranks in this process may use `resolved`; others resolve the experiment."""

    def next(self) -> Report | None:
        """Train to the next report; return rank 0's report, or None at the end. Raises RunError on failure."""

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""

    def end_run(self, run_index: int) -> None:
        """End one of the runs that share a training run, between two reports."""

    def end(self) -> None:
        """End the run between two reports; return when no process is training it any more."""


ENGINES: Mapping[str, type[Gang] | type[TrainJobs]] = {"gang": Gang, "train": TrainJobs}
"""Engines by name. `bundles` are the resources that Tune reserves for a trial, its own process first."""
