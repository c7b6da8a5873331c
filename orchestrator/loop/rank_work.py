"""Work that all ranks do, of which each learns whether the others could. Runs in workers."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hooks.errors import describe_error
from orchestrator.errors import RunError
from orchestrator.loop.world import World

_T = TypeVar("_T")


class OtherRankFailed(RunError):
    """Other ranks have failed in work that all do. The message names them and their errors."""


def do_on_all_ranks(world: World, work: Callable[[], _T]) -> list[_T]:
    """Do this rank's part of some work; return the results of all ranks. Collective.

    If a rank fails, all of them raise, because the others must not wait for it: its own error on
    that rank, and OtherRankFailed on the others.
    """
    result: Any = None
    failure: BaseException | None = None
    try:
        result = work()
    except BaseException as error:  # also one that ends the process
        failure = error

    ranks = world.gather((result, _describe_failure(world.rank, failure)))
    if failure is not None:
        raise failure
    messages = [message for _, message in ranks if message]
    if messages:
        raise OtherRankFailed("; ".join(messages))
    return [result for result, _ in ranks]


def do_on_master(world: World, work: Callable[[], _T]) -> _T:
    """Do some work on the master; return its result on every rank, or raise as `do_on_all_ranks`
    does. Collective."""

    def do_own_part() -> _T | None:
        return work() if world.is_master else None

    return cast(_T, do_on_all_ranks(world, do_own_part)[0])


def _describe_failure(rank: int, failure: BaseException | None) -> str:
    """Return what the other ranks say of a rank's failure; empty without one."""
    if failure is None:
        return ""
    text = str(failure) if isinstance(failure, Exception) else describe_error(failure)
    return f"rank {rank}: {text}"
