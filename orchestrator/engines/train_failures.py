"""Failures of Ray Train's workers: whether a job continues after one, and the error that its run
raises."""

from collections.abc import Mapping
from contextlib import suppress
from time import sleep
from typing import Any

import ray
from ray.train import UserCallback

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.mailbox import Line
from orchestrator.engines.rank_failures import RankFailed, find_root_failure, format_failure_line
from orchestrator.errors import HookyardError, RunError
from orchestrator.private_api.ray_train import unwrap

_RESTART_DELAY_S = 2.0
"""Seconds before a controller replaces workers. Meanwhile Ray ends a controller whose driver or
trial has died. Ray never frees what such a controller reserves while it is being ended, and the
next attempt would wait for it."""


class FailureCallback(UserCallback):
    """Callback that ends a run after a user error, and reports other failures, after which Ray
    Train restarts it.

    `queue` is the run's report queue. It ends with the driver or the trial that made it.
    """

    def __init__(self, queue: Any, mailbox: str | None, location: str, world_size: int) -> None:
        self._queue = queue
        self._mailbox = mailbox
        self._location = location
        self._world_size = world_size

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the rank's failure if it is a user error; raise a RayActorError if nobody waits for
        the run any more."""
        folder = RunFolder(self._location)
        failure = find_first_rank_failure(worker_exceptions, self._world_size, folder)
        if failure.is_user_error:
            raise failure
        self._show(failure)
        sleep(_RESTART_DELAY_S)
        ray.get(self._queue.should_train.remote())

    def _show(self, failure: RankFailed) -> None:
        if self._mailbox is None:
            return
        with suppress(HookyardError, OSError, ValueError):
            line = format_failure_line(failure, RunFolder(self._location).read_attempts())
            ray.get_actor(self._mailbox).post.remote(Line(line))


def make_run_error(
    error: BaseException, world_size: int, folder: RunFolder | None = None
) -> RunError:
    """Return the error of the rank that failed first, without Ray's wrapping."""
    failures: dict[int, BaseException] | None = getattr(error, "worker_failures", None)
    if failures:
        return find_first_rank_failure(failures, world_size, folder)
    rank_failure = _find_rank_failure(error)
    if rank_failure:
        return rank_failure

    innermost = list(unwrap(error))[-1]
    lines = str(innermost).strip().splitlines()
    return RunError(lines[-1].strip() if lines else type(innermost).__name__)


def find_first_rank_failure(
    failures: Mapping[int, BaseException], world_size: int, folder: RunFolder | None = None
) -> RankFailed:
    """Return the failure that caused the others."""
    return find_root_failure(
        {
            rank: _find_rank_failure(failure) or RankFailed.died(rank, world_size, folder)
            for rank, failure in failures.items()
        }
    )


def _find_rank_failure(error: BaseException) -> RankFailed | None:
    """Return the RankFailed in the chain of causes, if there is one."""
    return next((link for link in unwrap(error) if isinstance(link, RankFailed)), None)
