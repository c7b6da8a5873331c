"""What a task gave that the loop cannot take, said with its place in the task's own file. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from hooks.private_torch import tree_leaves
from orchestrator.config.python.user_code import source_location
from orchestrator.errors import RunError
from orchestrator.stats.aggregate.spans import TIMES

R = TypeVar("R")

TAKEN = frozenset(
    {
        "loss",
        "lr",
        "phase",
        "epoch",
        "iteration",
        "step",
        "samples",
        "batch_size",
        "rank",
        "attempt",
        "node",
        "microbatches",
        "evaluations",
        *TIMES,
    }
)
"""Columns that every row has, or may have, so that no part of a loss is called so."""


def loss_parts(method: Callable[..., Any], loss: Any) -> Mapping[str, Tensor]:
    """The parts of a loss that is no scalar; raises RunError where it has none either."""
    if not isinstance(loss, Mapping) or not loss:
        raise RunError(
            f"{method.__name__}() gives {described(loss)}, and must give one number for a batch, the mean over its"
            " samples, as a tensor without dimensions (end it with .mean()), or a mapping of such numbers, whose sum"
            f" is trained{source_location(method)}"
        )
    for name, part in loss.items():
        if not isinstance(part, Tensor) or part.ndim:
            raise RunError(
                f"{method.__name__}() gives {described(part)} for its part '{name}', and must give one number, the mean"
                f" over the batch's samples, as a tensor without dimensions{source_location(method)}"
            )
        if not isinstance(name, str) or not name:
            raise RunError(
                f"{method.__name__}() calls a part {name!r}, and must call each by a text{source_location(method)}"
            )
        if name in TAKEN:
            raise RunError(
                f"{method.__name__}() calls a part {name!r}, which is what every row has; call it"
                f" otherwise{source_location(method)}"
            )
    return loss


def wrong_metric(method: Callable[..., Any], name: str, values: Any, samples: int) -> RunError:
    """For values of a metric that are not one for each sample."""
    return RunError(
        f"metrics() gives {described(values)} for '{name}', and must give one value for each of the batch's {samples}"
        f" samples, shape ({samples},): a batch's mean would be averaged wrongly, as batches differ in size. Leave the"
        " mean to the loop; what is no mean over samples is a meter (meters()); samples that are not a batch's rows"
        f" are counted by batch_size(){source_location(method)}"
    )


def wrong_batch_size(method: Callable[..., Any], size: Any) -> RunError:
    """For a number of samples that is none."""
    given = repr(size) if isinstance(size, int | float) else described(size)
    return RunError(
        f"batch_size() gives {given}, and must give the number of samples in the batch, an int{source_location(method)}"
    )


def no_batch(collate: Callable[..., Any]) -> RunError:
    """For samples of which nothing is made."""
    return RunError(
        f"{getattr(collate, '__name__', 'collate')}() gives None, and must give the batch that it makes of the"
        f" samples{source_location(collate)}"
    )


def wrong_sample(phase: str, index: Any, error: Exception) -> RunError:
    """For a sample that the dataset cannot give."""
    return RunError(f"sample {index} of the {phase} data cannot be fetched: {type(error).__name__}: {error}")


def wrong_batch(phase: str, indices: Sequence[Any], samples: Sequence[Any], error: Exception) -> RunError:
    """For samples that cannot be put together."""
    shapes = [_shapes(sample) for sample in samples]
    odd = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is None:
        which = f"samples {', '.join(map(str, indices))}"
    else:
        which = f"samples {indices[0]} of shapes {shapes[0]} and {indices[odd]} of shapes {shapes[odd]}"
    return RunError(
        f"{which} of the {phase} data cannot be made a batch: {type(error).__name__}: {error}. Give samples of one"
        " shape, or write collate() in the task"
    )


def of_kind(method: Callable[..., Any], value: R, kind: type[Any], wanted: str) -> R:
    """What a method of the task has given, which must be of a kind; raises RunError for anything else."""
    if isinstance(value, kind):
        return value
    raise RunError(f"{method.__name__}() gives {described(value)}, and must give {wanted}{source_location(method)}")


def described(value: Any) -> str:
    """A value by its kind and shape."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _shapes(sample: Any) -> str:
    return (
        ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(sample) if hasattr(leaf, "shape"))
        or type(sample).__name__
    )
