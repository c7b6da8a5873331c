"""Calls of a method on the ranks of a gang, and their answers. Used where the gang is driven."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.engines.rank_failures import RankFailed

ANSWER_TIMEOUT_S = 5
"""Seconds to wait after a rank fails: for the rank that caused it, for the other ranks, and for a
spare process."""


class RankCalls:
    """Calls of one method on all ranks, which answer in any order with a result or a failure.

    Args:
        pending: Rank of each call that has not returned.
        describe: Returns the failure of a rank whose call raised an error.
    """

    def __init__(
        self, pending: dict[Any, int], describe: Callable[[int, RayError], RankFailed]
    ) -> None:
        self.results: dict[int, Any] = {}
        self.failures: dict[int, RankFailed] = {}
        self._pending = pending
        self._describe = describe

    def when_done(self, function: Callable[[int, Future[Any]], None]) -> None:
        """Call a function with the rank and the future of each call that has returned, on a thread
        of Ray."""
        for call, rank in self._pending.items():
            call.future().add_done_callback(partial(function, rank))

    def collect(self) -> None:
        """Wait for the answers.

        Return early once a rank has failed on its own, because the others may wait for it forever in
        a collective. After a failure that a lost peer may have caused, wait a while for the cause.
        """
        while self._pending and not self.causes:
            timeout_s = ANSWER_TIMEOUT_S if self.failures else None
            done, _ = ray.wait(list(self._pending), timeout=timeout_s)
            if not done:
                return
            call = done[0]
            rank = self._pending.pop(call)
            try:
                self.results[rank] = ray.get(call)
            except RayError as error:
                self.failures[rank] = self._describe(rank, error)

    @property
    def causes(self) -> set[int]:
        """The ranks whose failure is not a consequence of another rank's."""
        return {rank for rank, failure in self.failures.items() if not failure.can_be_secondary}

    def find_unusable(self) -> set[int]:
        """Return the ranks whose processes cannot be kept after a failure: those that caused it, and
        those that do not answer."""
        calls = list(self._pending)
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
        silent = {
            rank
            for call, rank in self._pending.items()
            if call not in answered or not self._is_usable(call, rank)
        }
        return self.causes | silent

    def _is_usable(self, call: Any, rank: int) -> bool:
        """Return whether a process can be kept: its call succeeded, or may have failed only because
        it lost a peer."""
        try:
            ray.get(call)
        except RayError as error:
            return self._describe(rank, error).can_be_secondary
        return True
