"""Failures of a Ray Train job: which rank failed first, and whether to restart. Driver, and Ray Train's controller."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from time import sleep
from typing import Any

import ray
from ray.train import UserCallback

from orchestrator.engines.rank_failures import RankFailed, culprit, loss_line
from orchestrator.errors import HookyardError, RunError
from orchestrator.private_api.ray_core import unwrap
from orchestrator.records.run_folder import RunFolder

_ORPHANED_S = 2.0
"""Seconds before a controller replaces workers. Ray ends a controller whose trial is gone in that time; else nobody
would free the resources that it reserves, and the trial's next attempt would wait for them."""


class OnFailure(UserCallback):
    """Ends a run that failed by a mistake in the experiment. Tells the driver of any other loss, after which Ray Train
    starts another attempt."""

    def __init__(self, mailbox: str | None, location: str) -> None:
        self._mailbox, self._location = mailbox, location

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the rank's failure if it is a mistake."""
        failure = first_of(worker_exceptions, RunFolder(self._location))
        if failure.mistake:
            raise failure
        self._show(failure)
        sleep(_ORPHANED_S)

    def _show(self, failure: RankFailed) -> None:
        if self._mailbox is None:
            return
        with suppress(HookyardError, OSError, ValueError):
            line = loss_line(failure, RunFolder(self._location).attempts())
            ray.get_actor(self._mailbox).post.remote(("line", line))


def first_failure(error: BaseException, folder: RunFolder | None = None) -> RunError:
    """Return the error of the rank that failed first, without Ray's wrapping."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {}) or {}
    if failures:
        return first_of(failures, folder)
    return _words(error) or RunError(_innermost_line(error))


def first_of(failures: Mapping[int, BaseException], folder: RunFolder | None = None) -> RankFailed:
    """Return the failure that the others followed from."""
    return culprit({rank: _words(failure) or RankFailed.died(rank, folder) for rank, failure in failures.items()})


def _words(error: BaseException) -> RankFailed | None:
    """Return a rank's account of its failure, if it gave one."""
    return next((link for link in unwrap(error) if isinstance(link, RankFailed)), None)


def _innermost_line(error: BaseException) -> str:
    innermost = list(unwrap(error))[-1]
    lines = [line for line in str(innermost).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(innermost).__name__
