"""What a task gave that the loop cannot take, said with its place in the task's own file. Worker process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hooks.private_torch import tree_leaves
from orchestrator.errors import RunError


def wrong_loss(method: Callable[..., Any], loss: Any) -> RunError:
    """For a loss that is no scalar."""
    return RunError(
        f"loss() gives {described(loss)}, and must give one number for a batch, the mean over its samples, as a tensor without "
        f"dimensions (end it with .mean()){place_of(method)}"
    )


def wrong_metric(method: Callable[..., Any], name: str, values: Any, samples: int) -> RunError:
    """For values of a metric that are not one for each sample."""
    return RunError(
        f"metrics() gives {described(values)} for '{name}', and must give one value for each of the batch's {samples} samples, shape "
        f"({samples},): a batch's mean would be averaged wrongly, as batches differ in size. Leave the mean to the loop; what is no "
        f"mean over samples is a meter (meters()); samples that are not a batch's rows are counted by batch_size(){place_of(method)}"
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
        f"{which} of the {phase} data cannot be made a batch: {type(error).__name__}: {error}. Give samples of one shape, or write "
        "collate() in the task"
    )


def described(value: Any) -> str:
    """A value by its kind and shape."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def place_of(method: Callable[..., Any]) -> str:
    """Where a method is written, as ` (file:line)`; empty where that cannot be told."""
    try:
        return f" ({inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]})"
    except (OSError, TypeError):
        return ""


def _shapes(sample: Any) -> str:
    return ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(sample) if hasattr(leaf, "shape")) or type(sample).__name__
