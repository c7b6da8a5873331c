"""The batches of a loader, with errors that name the samples of the dataset. Used in workers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from traceback import extract_tb
from typing import Any, NoReturn

from torch.utils.data import DataLoader, IterableDataset

from hooks.errors import describe_error
from hooks.parameter_names import join_names
from hooks.private_torch import tree_leaves
from orchestrator.errors import RunError
from orchestrator.loop.task_errors import make_return_error

_BATCH = "a batch made from the samples"


def iterate_batches(loader: Iterable[Any], phase: str) -> Iterator[Any]:
    """Return the batches of a loader, which raise RunError for a sample that cannot be loaded.

    If the loader has no processes, this does not use torch's iterator, whose overhead is larger
    than the loop's.
    """
    if type(loader) is not DataLoader or loader.batch_sampler is None:
        return iter(loader)
    if isinstance(loader.dataset, IterableDataset):
        return iter(loader)
    if loader.num_workers == 0 and not loader.pin_memory:
        return _fetch_in_process(loader, loader.batch_sampler, phase)
    return _fetch_elsewhere(loader, loader.batch_sampler, phase)


def _fetch_in_process(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    dataset = loader.dataset
    collate = loader.collate_fn
    # Some datasets fetch all samples of a batch together.
    fetch = getattr(dataset, "__getitems__", None)
    for indices in batches:
        try:
            batch = collate(fetch(indices) if fetch else [dataset[index] for index in indices])
        except Exception as error:
            _raise_located(loader, indices, phase, error)
        if batch is None:
            raise make_return_error(collate, "", None, _BATCH)
        yield batch


def _fetch_elsewhere(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    iterator = iter(loader)
    for count in itertools.count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            if not is_of_samples(error, has_processes=loader.num_workers > 0):
                raise
            indices = next(itertools.islice(iter(batches), count, None), None)
            if indices is None:
                raise
            _raise_located(loader, indices, phase, error)
        if batch is None:
            raise make_return_error(loader.collate_fn, "", None, _BATCH)
        yield batch


def is_of_samples(error: Exception, *, has_processes: bool) -> bool:
    """Return whether an error of a loader comes from the user code that makes its batches.

    Another error is torch's own: a process died, or a batch cannot be pinned. If the loader has
    processes, a thread pins batches, and only the message tells an error of that thread.
    """
    frames = extract_tb(error.__traceback__)
    if not has_processes:
        return all(frame.name != "pin_memory" for frame in frames)
    return frames[-1].name == "reraise" and "in pin memory thread" not in str(error)


def _raise_located(loader: Any, indices: Sequence[int], phase: str, error: Exception) -> NoReturn:
    """Load the samples of a batch again, and raise RunError that names those that fail.

    Raises the first error if none fails. Perhaps they are not the samples of that batch, because a
    sampler that shuffles gives others each time.
    """
    samples = [_load_sample(loader.dataset, index, phase) for index in indices]
    try:
        loader.collate_fn(samples)
    except Exception as cause:
        cause.__suppress_context__ = True
        raise RunError(
            f"{_describe_samples(indices, samples)} of the {phase} data cannot be collated:"
            f" {describe_error(cause)}; return samples of one shape, or define collate() in the task"
        ) from cause
    raise error


def _load_sample(dataset: Any, index: int, phase: str) -> Any:
    try:
        return dataset[index]
    except Exception as cause:
        # Hide the first attempt, which failed in the same way.
        cause.__suppress_context__ = True
        raise RunError(
            f"sample {index} of the {phase} data cannot be fetched: {describe_error(cause)}"
        ) from cause


def _describe_samples(indices: Sequence[int], samples: Sequence[Any]) -> str:
    """Name two samples of different shapes, or else all."""
    shapes = [*map(_describe_shapes, samples)]
    for index, shape in zip(indices, shapes, strict=True):
        if shape != shapes[0]:
            return f"sample {indices[0]} (shape {shapes[0]}) and sample {index} (shape {shape})"
    return f"samples {join_names(list(map(str, indices)), 4)}"


def _describe_shapes(sample: Any) -> str:
    shapes = [str(tuple(leaf.shape)) for leaf in tree_leaves(sample) if hasattr(leaf, "shape")]
    return ", ".join(shapes) or type(sample).__name__
