"""The order of a task's own sampler, checked to be the same on all ranks and each time."""

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
from orchestrator.randomness import random_state, restore_random_state, seed_all
from orchestrator.task import Task

MOST_WEIGHTS = 2**24
"""The most categories that torch's multinomial takes."""


def sampled(task: Task, dataset: Any, phase: str, seed: int, world: World) -> tuple[Order, int] | None:
    """Return the order of `task.sampler` for a phase and its length, or None if it has none.

    Collective if there is a sampler. Raises ConfigError unless it is an order of this dataset.
    """
    given = task.sampler(dataset, phase)
    if given is None:
        return None
    where = f"{type(task).__name__}.sampler() for {phase}"
    order = (
        _sampler_order(given, len(dataset), seed, where)
        if _is_sampler(given)
        else _weighted_order(given, len(dataset), seed, where)
    )
    first = order(0)
    if not first:
        raise _wrong(where, "gives no sample")
    if order(0) != first:
        message = (
            "gives another order each time it is asked for the same epoch, so that neither ranks nor a resumed run"
            " would agree"
        )
        advice = "draw from torch's, numpy's or random's global generators, from its `generator`, or by set_epoch"
        raise _wrong(where, message, advice)
    orders = world.gather(_digest(first))
    other = next((rank for rank, one in enumerate(orders) if one != orders[0]), None)
    if other is not None:
        message = f"gives rank {other} another order than rank 0"
        raise _wrong(where, message, "give the order of the whole dataset; the loop shares it out among ranks")
    return order, len(first)


def _wrong(where: str, message: str, advice: str | None = None) -> ConfigError:
    return ConfigError([Problem("task", f"{where} {message}", suggestion=advice)])


def _is_sampler(given: Any) -> bool:
    return isinstance(given, Sampler) or hasattr(given, "set_epoch")


def _digest(order: list[int]) -> int:
    return hash(tuple(order))


def _weighted_order(given: Iterable[float], samples: int, seed: int, where: str) -> Order:
    """Draw as many samples as there are, with replacement, as torch's WeightedRandomSampler does."""
    try:
        if isinstance(given, Mapping):
            raise TypeError
        weights = torch.as_tensor(given if isinstance(given, Tensor) else list(given), dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _wrong(
            where, f"gives a {type(given).__name__}, and may give a Sampler, a weight for each sample, or None"
        ) from error
    if weights.shape != (samples,):
        raise _wrong(where, f"gives weights of shape {tuple(weights.shape)}, and the dataset has {samples} samples")
    if samples > MOST_WEIGHTS:
        raise _wrong(where, f"gives {samples} weights, and torch draws from {MOST_WEIGHTS} at most; give a Sampler")
    odd = (~(weights.isfinite() & (weights >= 0))).nonzero()
    if len(odd) or not weights.sum() > 0:
        which = f"the weight {weights[odd[0]].item()} for sample {odd[0].item()}" if len(odd) else "no weight above 0"
        raise _wrong(where, f"gives {which}; weights are numbers from 0, not all of them 0")

    def order(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + epoch)
        places: list[int] = torch.multinomial(weights, samples, replacement=True, generator=generator).tolist()
        return places

    return order


def _sampler_order(sampler: Any, samples: int, seed: int, where: str) -> Order:
    """Return the order of a sampler, with all generators seeded for the epoch."""

    def draw_order(epoch: int) -> list[int]:
        before = random_state()
        seed_all(seed + epoch)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(seed + epoch)
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
        try:
            return list(map(index, sampler))
        except TypeError as error:
            raise _wrong(
                where, f"gives what is no index of a sample ({error}); batches are made of batch_size of these"
            ) from error
        finally:
            restore_random_state(before)

    def order(epoch: int) -> list[int]:
        places = draw_order(epoch)
        if places and not 0 <= min(places) <= max(places) < samples:
            wrong = next(place for place in places if not 0 <= place < samples)
            raise _wrong(where, f"gives sample {wrong}, and the dataset has {samples}, from 0")
        return places

    return order
