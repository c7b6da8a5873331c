"""A rank in this process: what ranks have in common on all engines but Ray Train."""

import gc
from collections.abc import Generator
from functools import cached_property

import torch

from orchestrator.engines.device import find_device
from orchestrator.engines.session import Session
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report


class Rank:
    """A rank, which can train several runs in the same process, one after another."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._session: Session | None = None
        self._reports: Generator[Report, None, None] | None = None

    @cached_property
    def device(self) -> torch.device:
        """Device of the rank; chosen at the start of a run, so an error belongs to that run."""
        return find_device(self.workers)

    def take(self, session: Session) -> None:
        """Take a run without training yet."""
        self._session = session
        self._reports = session.reports()

    def next(self) -> Report | None:
        assert self._reports is not None
        return next(self._reports, None)

    def save(self) -> str:
        assert self._session is not None
        return self._session.save()

    def end_run(self, run_index: int) -> None:
        """End the run, or one run of a shared training, at the report that it has just made."""
        assert self._session is not None
        self._session.end_run(run_index)

    def end(self) -> None:
        """End the run at its current position, and free its GPU memory, so the next run's peaks are
        its own."""
        if self._reports is not None:
            self._reports.close()
        self._session = None
        self._reports = None
        if torch.cuda.is_initialized():
            gc.collect()  # a reference cycle of a task, a hook or torch may contain the model
            torch.cuda.empty_cache()
