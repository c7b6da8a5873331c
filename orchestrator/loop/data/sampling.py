"""The order of a task's own sampler; it must be the same on all ranks and in each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.data.sharding import Order
from orchestrator.loop.world import World
from orchestrator.randomness import seeded
from orchestrator.task import Task


def find_sampler_order(task: Task, dataset: Any, phase: str, seed: int, world: World) -> tuple[Order, int] | None:
    """Return the order of `task.sampler` for a phase and its length, or None if it has no sampler.

    Collective if there is a sampler. Raises ConfigError unless it is a repeatable order of this dataset.
    """
    sampler = task.sampler(dataset, phase)
    if sampler is None:
        return None
    method = f"{type(task).__name__}.sampler() for {phase}"
    is_sampler = isinstance(sampler, Sampler) or hasattr(sampler, "set_epoch")
    order = (_make_sampler_order if is_sampler else _make_weighted_order)(sampler, len(dataset), seed, method)
    first = order(0)
    if not first:
        raise _problem(method, "gives no sample")
    if order(0) != first:
        raise _problem(
            method,
            "gives another order on a second call for the same epoch, so ranks and a resumed run would disagree",
            "draw from the global generators of torch, numpy or random, from its `generator`, or by set_epoch",
        )
    digests = world.gather(hash(tuple(first)))
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            advice = "return the order of the whole dataset; the loop splits it among ranks"
            raise _problem(method, f"gives rank {rank} another order than rank 0", advice)
    return order, len(first)


def _problem(method: str, message: str, advice: str | None = None) -> ConfigError:
    return ConfigError([Problem("task", f"{method} {message}", suggestion=advice)])


def _make_weighted_order(weights: Iterable[float], samples: int, seed: int, method: str) -> Order:
    """Return an order that draws with replacement, as torch's WeightedRandomSampler does."""
    try:
        if isinstance(weights, Mapping):
            raise TypeError
        tensor = torch.as_tensor(weights if isinstance(weights, Tensor) else list(weights), dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"gives a {type(weights).__name__}; expected a Sampler, a weight for each sample, or None"
        raise _problem(method, message) from error
    if tensor.shape != (samples,):
        raise _problem(method, f"gives weights of shape {tuple(tensor.shape)}, and the dataset has {samples} samples")

    def order(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + epoch)
        try:
            indices: list[int] = torch.multinomial(tensor, samples, replacement=True, generator=generator).tolist()
        except RuntimeError as error:
            raise _problem(method, f"gives weights that torch.multinomial refuses: {error}") from error
        return indices

    return order


def _make_sampler_order(sampler: Any, samples: int, seed: int, method: str) -> Order:
    """Return the order of a sampler, with all generators seeded for the epoch."""

    def order(epoch: int) -> list[int]:
        with seeded(seed + epoch):
            if isinstance(getattr(sampler, "generator", None), torch.Generator):
                sampler.generator.manual_seed(seed + epoch)
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            try:
                indices = list(map(index, sampler))
            except TypeError as error:
                message = f"must give indices of samples, which the loop puts into batches: {error}"
                raise _problem(method, message) from error
        wrong = next((number for number in indices if not 0 <= number < samples), None)
        if wrong is not None:
            raise _problem(method, f"gives sample {wrong}, and the dataset has {samples}, from 0")
        return indices

    return order
