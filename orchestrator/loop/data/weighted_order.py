"""The order of a sampling by the weights that a task gives instead of a sampler."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import torch
from torch import Tensor

from hooks.errors import add_article
from orchestrator.errors import ConfigError
from orchestrator.loop.data.sampling import Order
from orchestrator.units import format_count


def make_weighted_order(
    weights: Iterable[float], samples: int, seed: int, refuse: Callable[[str], ConfigError]
) -> Order:
    """Return the order of a sampling with replacement, as torch's WeightedRandomSampler does it.

    Args:
        weights: The weight of each sample.
        samples: Number of samples of the dataset, and of an epoch.
        seed: Seed of the first epoch.
        refuse: Returns the error for weights that cannot be used.
    """
    tensor = _convert_weights(weights, samples, refuse)
    if tensor.shape != (samples,):
        raise refuse(
            f"gives weights of shape {tuple(tensor.shape)}, and the dataset has"
            f" {format_count(samples, 'sample')}"
        )

    def order(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + epoch)
        try:
            sampled = torch.multinomial(tensor, samples, replacement=True, generator=generator)
        except RuntimeError as error:
            raise refuse(f"gives weights that torch.multinomial refuses: {error}") from error
        indices: list[int] = sampled.tolist()
        return indices

    return order


def _convert_weights(
    weights: Iterable[float], samples: int, refuse: Callable[[str], ConfigError]
) -> Tensor:
    """Return weights as a tensor, with one too many if there are more than samples."""
    try:
        if isinstance(weights, Mapping):
            raise TypeError
        values = weights
        if not isinstance(weights, Tensor):
            values = list(islice(weights, samples + 1))
        return torch.as_tensor(values, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise refuse(
            f"gives {add_article(type(weights).__name__)}; expected a Sampler, a weight for each"
            " sample, or None"
        ) from error
