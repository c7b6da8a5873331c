"""Failures as Ray Train gathers them: whose it was, in that rank's own words. Driver, and the controller of Ray Train."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.rank_failures import RankFailed, culprit
from orchestrator.errors import RunError
from orchestrator.private_api.ray_train import unwrapped


def first_failure(error: BaseException) -> RunError:
    """What the rank that failed first said, without Ray's wrapping."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {}) or {}
    if failures:
        return first_of(failures)
    told = next((one for one in unwrapped(error) if isinstance(one, RankFailed)), None)
    return told or RunError(_own_words(error))


def first_of(failures: Mapping[int, BaseException]) -> RankFailed:
    """The failure that the others followed from, of those that Ray Train has gathered by rank."""
    return culprit({rank: _rank_failure(rank, failure) for rank, failure in failures.items()})


def _rank_failure(rank: int, failure: BaseException) -> RankFailed:
    """What a rank said of its failure; where it did not come to that, its process is gone."""
    for error in unwrapped(failure):
        if isinstance(error, RankFailed):
            return error
    return RankFailed.died(rank)


def _own_words(error: BaseException) -> str:
    innermost = list(unwrapped(error))[-1]
    lines = [line for line in str(innermost).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(innermost).__name__
