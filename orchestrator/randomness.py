"""Seeding, and saving and restoring the random state of a rank."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy
import torch

T = TypeVar("T")


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices."""
    seed_host(seed)
    # Without an accelerator, torch would format the stack, to seed one that appears later.
    if torch.accelerator.is_available():
        torch.manual_seed(seed)


def seed_host(seed: int) -> None:
    """Seed the generators of the CPU, and leave those of other devices."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all generators within the block, and restore their state afterwards."""
    with keeping_random_state():
        seed_all(seed)
        yield


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Restore the state of all generators after the block."""
    before = random_state()
    try:
        yield
    finally:
        restore_random_state(before)


def random_state() -> dict[str, Any]:
    """Return the state of every generator, as plain data and tensors.

    Long lists become tensors, because `torch.save` visits each item of a list.
    """
    state: Any = numpy.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = state
    version, words, gauss = random.getstate()
    return {
        "python": [version, torch.from_numpy(numpy.array(words)), gauss],
        "numpy": [
            str(kind),
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        # Reading the state would create a CUDA context. A process without one has drawn nothing on
        # the GPU.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])


def with_same_random_state(items: Iterable[T]) -> Iterator[T]:
    """Yield items, each with the same random state; the state after the first item remains at the
    end."""
    first = random_state()
    after = None
    for item in items:
        if after is not None:
            restore_random_state(first)
        yield item
        after = after or random_state()
    if after is not None:
        restore_random_state(after)


def with_own_generators(items: Iterable[T], seed: int) -> Iterator[T]:
    """Yield items that draw from separate generators, which start from `seed`."""
    with seeded(seed):
        own = random_state()
    iterator = iter(items)
    end = object()
    while True:
        before = random_state()
        restore_random_state(own)
        try:
            item: Any = next(iterator, end)
        finally:
            own = random_state()
            restore_random_state(before)
        if item is end:
            return
        yield item
