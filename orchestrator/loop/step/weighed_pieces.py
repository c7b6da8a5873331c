"""The pieces of a batch that is too large for the memory, each with its share of the batch's loss.
Used in workers."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from orchestrator.errors import TaskError
from orchestrator.loop.step.batch_pieces import split_batch
from orchestrator.loop.step.weights import weigh
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location

_ADVICE = "Set a smaller batch_size, and accumulate as a number"


class Piece(NamedTuple):
    """A piece of a batch, and its share of the batch's loss."""

    batch: Any
    samples: int
    share: float = 1.0
    loss_weight: float | None = None
    """Its weight, if the task has weights."""


def split_into_pieces(task: Task, whole: Piece, number: int, on_host: Any) -> list[Piece]:
    """Return at most `number` pieces of a whole batch, whose shares add up to 1.

    `on_host` is the batch before it was moved to the device, whose pieces the task weighs. Raises
    TaskError if the batch cannot be cut by samples.
    """
    if number == 1:
        return [whole]
    batches = _cut(whole.batch, number)
    sizes = _count_samples(task, batches, whole.samples)
    if whole.loss_weight is None:
        shares = _divide(sizes, whole.samples, of_nothing=1 / len(sizes))
        return [*map(Piece, batches, sizes, shares)]
    weights = _weigh_pieces(task, split_batch(on_host, number), whole.loss_weight)
    shares = _divide(weights, whole.loss_weight, of_nothing=0.0)
    return [*map(Piece, batches, sizes, shares, weights)]


def _divide(parts: Sequence[float], total: float, *, of_nothing: float) -> list[float]:
    """Return the share of each part in the total; `of_nothing` for each if the total is 0."""
    return [part / total if total else of_nothing for part in parts]


def _cut(batch: Any, number: int) -> list[Any]:
    """Cut a batch along its first dimension; raises TaskError if that is impossible."""
    try:
        return split_batch(batch, number)
    except ValueError as error:
        raise TaskError(
            f"memory ran out, and the batch cannot be cut into pieces: {error}. {_ADVICE}"
        ) from None


def _count_samples(task: Task, batches: Iterable[Any], total: int) -> list[int]:
    """Return the number of samples in each piece of a batch.

    Raises TaskError unless they add up to `total`, the batch's.
    """
    sizes = [task.batch_size(piece) for piece in batches]
    if sum(sizes) != total:
        raise TaskError(
            f"accumulate: auto cuts batches along the first dimension, but {total} samples became pieces of"
            f" {', '.join(map(str, sizes))}. {_ADVICE}{find_source_location(task.batch_size)}"
        )
    return sizes


def _weigh_pieces(task: Task, batches: Iterable[Any], total: float) -> list[float]:
    """Return the weight of each piece of a batch.

    Raises TaskError unless they add up to `total`, the batch's.
    """
    weights = [weigh(task, piece) for piece in batches]
    if not math.isclose(sum(weights), total, rel_tol=1e-6):
        raise TaskError(
            f"accumulate: auto cuts batches into pieces, but the weight {total:g} of a batch became"
            f" {', '.join(f'{weight:g}' for weight in weights)}; let weight() count only what its batch contains"
            f"{find_source_location(task.weight)}"
        )
    return weights
