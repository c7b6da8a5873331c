"""The run that failed, of several that share a training, as an attribute of the error."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hooks.errors import get_cause, walk_errors

_ATTRIBUTE = "hookyard_failed_run"
"""Attribute of an error, which is pickled with it."""

R = TypeVar("R")


def call_for_each_run(function: Callable[..., R], *arguments: Iterable[Any]) -> list[R]:
    """Call a function with the arguments of each run, which are in the order of the runs, and return
    the results; mark an error as that of the run."""
    results = []
    for index, own in enumerate(zip(*arguments, strict=True)):
        with marking_failed_run(index):
            results.append(function(*own))
    return results


@contextmanager
def marking_failed_run(run_index: int) -> Iterator[None]:
    """Mark an error of the block as that of a run, as `mark_failed_run` does."""
    try:
        yield
    except Exception as error:
        mark_failed_run(error, run_index)
        raise


def mark_failed_run(error: BaseException, run_index: int) -> None:
    """Mark an error as that of a run, unless the error or its cause is already marked."""
    marked = find_failed_run(error)
    if marked is not None:
        run_index = marked
    # Not by `setattr`, which an error that is a frozen dataclass refuses.
    vars(error)[_ATTRIBUTE] = run_index


def find_failed_run(error: BaseException) -> int | None:
    """Return the index of the run by which an error or its cause is marked; None if neither is
    marked."""
    for link in walk_errors(error, get_cause):
        if hasattr(link, _ATTRIBUTE):
            return int(getattr(link, _ATTRIBUTE))
    return None
