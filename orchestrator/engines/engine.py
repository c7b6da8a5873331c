"""Engines: what trains a trial, and the next one after it. Each is a module; the sweep's `engine` names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from orchestrator.config.experiment import Workers
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.gang import Gang
from orchestrator.engines.session import Assignment
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.loop.report import Report


class Engine(Protocol):
    """Trains one trial at a time, report by report. In the trial's process, which Ray Tune drives."""

    def __init__(self, workers: Workers) -> None: ...

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """What Tune reserves for a trial, the trial's own process first."""

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment) -> None:
        """Takes up a trial; `resolved` is its experiment, with which this process trains where it is a rank itself."""

    def next(self) -> Report | None:
        """Trains up to the next report and returns rank 0's; None when the trial is over."""

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path, where trials pause."""

    def end(self) -> None:
        """Ends the trial, wherever it stands between two reports; returns when nothing of it is trained any more."""


ENGINES: Mapping[str, type[Engine]] = {"gang": Gang, "train": TrainJobs}
