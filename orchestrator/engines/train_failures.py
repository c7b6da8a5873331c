"""Failures as Ray Train gathers them: whose it was, in that rank's own words, and what follows. Driver, and the
controller of Ray Train."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from time import sleep
from typing import Any

import ray
from ray.train import UserCallback

from orchestrator.engines.rank_failures import RankFailed, culprit, loss_line
from orchestrator.errors import HookyardError, RunError
from orchestrator.private_api.ray_train import unwrapped
from orchestrator.records.run_folder import RunFolder

_ORPHANED_S = 2.0
"""How long a controller waits before it replaces workers. Where they are gone as the trial is that it belongs to, Ray
ends it meanwhile; what it took for new ones by then would be held by nobody, and the trial's next attempt would wait
for it."""


class OnFailure(UserCallback):
    """Ends a run whose rank failed by a mistake in the experiment, as new workers would only make it again; tells the
    driver of any other loss, in one line in its mailbox, and leaves it to Ray Train to start another attempt."""

    def __init__(self, mailbox: str | None, location: str) -> None:
        self._mailbox, self._location = mailbox, location

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the rank's failure where it is a mistake. The line is not waited for, and a run goes on without it."""
        failure = first_of(worker_exceptions, RunFolder(self._location))
        if failure.mistake:
            raise failure
        self._tell(failure)
        sleep(_ORPHANED_S)

    def _tell(self, failure: RankFailed) -> None:
        if self._mailbox is None:
            return
        with suppress(HookyardError, OSError, ValueError):
            line = loss_line(failure, RunFolder(self._location).attempts())
            ray.get_actor(self._mailbox).post.remote(("line", line))


def first_failure(error: BaseException, folder: RunFolder | None = None) -> RunError:
    """What the rank that failed first said, without Ray's wrapping."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {}) or {}
    if failures:
        return first_of(failures, folder)
    return _words(error) or RunError(_innermost_line(error))


def first_of(failures: Mapping[int, BaseException], folder: RunFolder | None = None) -> RankFailed:
    """The failure that the others followed from, of those that Ray Train has gathered by rank."""
    return culprit({rank: _words(failure) or RankFailed.died(rank, folder) for rank, failure in failures.items()})


def _words(error: BaseException) -> RankFailed | None:
    """What a rank said of its failure; None where it did not come to that."""
    return next((one for one in unwrapped(error) if isinstance(one, RankFailed)), None)


def _innermost_line(error: BaseException) -> str:
    innermost = list(unwrapped(error))[-1]
    lines = [line for line in str(innermost).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(innermost).__name__
