"""The batches of a loader, and which sample it was where one cannot be had. Worker process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from orchestrator.errors import RunError
from orchestrator.loop.step.task_errors import missing_batch, wrong_batch, wrong_sample


def batches_of(loader: Iterable[Any], phase: str) -> Iterator[Any]:
    """The batches of a loader; raises RunError with the sample and the phase where the data cannot give one.

    One that loads in this very process is not asked for its iterator: what that does around each batch, for processes
    that are not there and for a profiler, would cost more than all of the loop's own work.
    """
    if type(loader) is not DataLoader or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return iter(loader)
    if loader.num_workers == 0 and not loader.pin_memory:
        return _fetched_here(loader, loader.batch_sampler, phase)
    return _fetched_elsewhere(loader, loader.batch_sampler, phase)


def _fetched_here(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    dataset, collate = loader.dataset, loader.collate_fn
    # A dataset that can fetches the samples of a batch all at once.
    fetch = getattr(dataset, "__getitems__", None) or (lambda indices: [dataset[index] for index in indices])
    for indices in batches:
        try:
            batch = collate(fetch(indices))
        except Exception as error:  # the user's own code, which may raise anything
            raise _explained(loader, indices, phase, error)  # noqa: B904  # its cause is chosen there
        if batch is None:
            raise missing_batch(collate)
        yield batch


def _fetched_elsewhere(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    iterator, made = iter(loader), 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # what a process of the loader has raised, of whatever class
            if not _raised_again(error):
                raise
            raise _explained(loader, next(islice(iter(batches), made, None)), phase, error)  # noqa: B904  # its cause is chosen there
        if batch is None:
            raise missing_batch(loader.collate_fn)
        made += 1
        yield batch


def _raised_again(error: Exception) -> bool:
    """Whether a loader's process has raised this, as against torch itself, which says so where one is gone."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "reraise"


def _explained(loader: Any, indices: Sequence[int], phase: str, error: Exception) -> RunError:
    """Tries the samples of a batch one by one, to say which of them cannot be had, or that all can but not together."""
    samples = []
    for index in indices:
        try:
            samples.append(loader.dataset[index])
        except Exception as again:
            # What is told is the user's own error, not what it was met again for.
            again.__suppress_context__ = True
            failure = wrong_sample(phase, index, again)
            failure.__cause__ = again
            return failure
    failure = wrong_batch(phase, indices, samples, error)
    failure.__cause__ = error
    return failure
