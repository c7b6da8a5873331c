"""Failures of a Ray Train job: find the rank that failed first, and decide whether to restart.

Runs in the driver and in Ray Train's controller.
"""

from collections.abc import Mapping
from contextlib import suppress
from time import sleep
from typing import Any

import ray
from ray.train import UserCallback

from orchestrator.engines.rank_failures import RankFailed, find_root_failure, format_failure_line
from orchestrator.errors import HookyardError, RunError
from orchestrator.private_api.ray_core import unwrap
from orchestrator.records.run_folder import RunFolder

_RESTART_DELAY_S = 2.0
"""Seconds before a controller replaces workers. Meanwhile Ray ends a controller whose trial has died; otherwise its
resources would stay reserved, and the trial's next attempt would wait for them."""


class OnFailure(UserCallback):
    """Callback that ends a run after a user error. It reports any other failure to the driver, and Ray Train starts
    another attempt."""

    def __init__(self, mailbox: str | None, location: str) -> None:
        self._mailbox, self._location = mailbox, location

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the rank's failure if it is a user error."""
        failure = find_first_failure(worker_exceptions, RunFolder(self._location))
        if failure.is_user_error:
            raise failure
        self._show(failure)
        sleep(_RESTART_DELAY_S)

    def _show(self, failure: RankFailed) -> None:
        if self._mailbox is None:
            return
        with suppress(HookyardError, OSError, ValueError):
            line = format_failure_line(failure, RunFolder(self._location).read_attempts())
            ray.get_actor(self._mailbox).post.remote(("line", line))


def first_failure(error: BaseException, folder: RunFolder | None = None) -> RunError:
    """Return the error of the rank that failed first, without Ray's wrapping."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {}) or {}
    if failures:
        return find_first_failure(failures, folder)
    innermost = list(unwrap(error))[-1]
    lines = [line.strip() for line in str(innermost).splitlines() if line.strip()]
    return _find_rank_failure(error) or RunError(lines[-1] if lines else type(innermost).__name__)


def find_first_failure(failures: Mapping[int, BaseException], folder: RunFolder | None = None) -> RankFailed:
    """Return the failure that caused the others."""
    return find_root_failure(
        {rank: _find_rank_failure(failure) or RankFailed.died(rank, folder) for rank, failure in failures.items()}
    )


def _find_rank_failure(error: BaseException) -> RankFailed | None:
    """Return the RankFailed in the chain of causes, if there is one."""
    return next((link for link in unwrap(error) if isinstance(link, RankFailed)), None)
