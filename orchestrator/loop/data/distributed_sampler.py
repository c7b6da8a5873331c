"""Rejection of torch's DistributedSampler where the loop divides the samples among ranks."""

from collections.abc import Callable
from traceback import walk_tb
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler

from hooks.loader_parts import find_parts
from orchestrator.errors import ConfigError
from orchestrator.loop.world import World

R = TypeVar("R")


def call_without_distributed_sampler(
    method: Callable[..., R], phase: str, *arguments: Any, advice: str
) -> R:
    """Return what a method of the task makes for a phase.

    Raises ConfigError, with `advice`, if a DistributedSampler is in it, or if the method fails to
    make one, because there is no process group.
    """
    try:
        result = method(*arguments)
    except Exception as error:
        if _is_from_distributed_sampler(error):
            raise _refuse(method, phase, advice) from error
        raise
    if _find_distributed_samplers(result):
        raise _refuse(method, phase, advice)
    return result


def check_shard_of_loader(
    method: Callable[..., Any], phase: str, loader: Any, world: World
) -> None:
    """Raise ConfigError if a loader that the task returns as data has a DistributedSampler of
    another rank or number of ranks."""
    for sampler in _find_distributed_samplers(loader):
        if (sampler.rank, sampler.num_replicas) != (world.rank, world.world_size):
            raise ConfigError.at(
                "task",
                f"{_describe(method, phase)} has a DistributedSampler of rank {sampler.rank} of {sampler.num_replicas},"
                f" and this is rank {world.rank} of {world.world_size}",
                "return the dataset instead, which the loop divides among ranks",
            )


def _find_distributed_samplers(whole: Any) -> list[DistributedSampler[Any]]:
    return [part for part in find_parts(whole) if isinstance(part, DistributedSampler)]


def _is_from_distributed_sampler(error: Exception) -> bool:
    constructor = DistributedSampler.__init__.__code__
    return any(frame.f_code is constructor for frame, _ in walk_tb(error.__traceback__))


def _refuse(method: Callable[..., Any], phase: str, advice: str) -> ConfigError:
    return ConfigError.at(
        "task",
        f"{_describe(method, phase)} has a DistributedSampler; the loop itself divides the samples among ranks",
        advice,
    )


def _describe(method: Callable[..., Any], phase: str) -> str:
    return f"{method.__qualname__}() for {phase}"
