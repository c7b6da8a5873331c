"""The order of a task's own sampler, checked to be the same on all ranks and each time."""

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import index
from typing import Any

import torch
from torch.utils.data import Sampler

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.datasets import get_length
from orchestrator.loop.data.distributed_sampler import call_without_distributed_sampler
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.sampling import Order
from orchestrator.loop.data.weighted_order import make_weighted_order
from orchestrator.randomness import seeded, with_own_generators
from orchestrator.units import format_count


def find_sampler_order(context: PhaseContext, dataset: Any) -> tuple[Order, int] | None:
    """Return the order of `task.sampler` for a phase and its length, or None if it has no sampler.

    Collective if there is a sampler. Raises ConfigError unless it is a repeatable order of this
    dataset. A sampler without an end may train for a number of steps; an epoch then has as many
    samples as the dataset.
    """
    method = _SamplerMethod(context, dataset)
    sampler = method.call()
    if sampler is None:
        return None

    order = method.make_order(sampler)
    repeated = order
    first = order(0)
    limit = method.find_limit(sampler)
    if len(first) > limit:
        method.check_may_be_endless(limit)
        order = _EndlessOrder(method)
        # The same order gives the epoch that it has drawn.
        repeated = _EndlessOrder(method)
        first = order(0)

    if not first:
        raise method.refuse("gives no sample")
    second = repeated(0)
    if second != first:
        raise method.refuse(
            "gives another order on a second call for the same epoch, so ranks and a resumed run would disagree",
            "take its random numbers from the global generators of torch, numpy or random, from its"
            " `generator`, or from one that set_epoch seeds",
        )
    method.check_ranks_agree(first)
    return order, len(first)


class _SamplerMethod:
    """The task's `sampler()` for a phase: the orders that it gives, and their errors."""

    def __init__(self, context: PhaseContext, dataset: Any) -> None:
        self._context = context
        self._dataset = dataset
        self.samples = len(dataset)
        self.seed = context.experiment.seed

    def call(self) -> Any:
        phase = self._context.phase
        return call_without_distributed_sampler(
            self._context.task.sampler,
            phase,
            self._dataset,
            phase,
            advice="return a sampler of the whole dataset, such as torch's RandomSampler, or None",
        )

    def refuse(self, message: str, advice: str | None = None) -> ConfigError:
        """Return the error of a sampler that cannot be used."""
        method = f"{type(self._context.task).__name__}.sampler() for {self._context.phase}"
        return ConfigError.at("task", f"{method} {message}", suggestion=advice)

    def make_order(self, sampler: Any) -> Order:
        """Return the order of a sampler, or of a sampling with replacement by weights."""
        if isinstance(sampler, Sampler) or hasattr(sampler, "set_epoch"):
            return self._make_sampler_order(sampler)
        return make_weighted_order(sampler, self.samples, self.seed, self.refuse)

    def _make_sampler_order(self, sampler: Any) -> Order:
        """Return the order of a sampler, with all generators seeded for the epoch.

        A sampler without an end gives one index too many.
        """
        limit = self.find_limit(sampler)

        def order(epoch: int) -> list[int]:
            seed = self.seed + epoch
            with seeded(seed):
                _seed_own_generator(sampler, seed)
                if callable(getattr(sampler, "set_epoch", None)):
                    sampler.set_epoch(epoch)
                return self.read(islice(iter(sampler), limit + 1))

        return order

    def find_limit(self, sampler: Any) -> int:
        """Return the number of samples after which a sampler counts as endless.

        A sampler's length may be the dataset's, although it has no end.
        """
        return max(10 * self.samples, get_length(sampler) or 0)

    def read(self, sampler: Iterable[Any]) -> list[int]:
        """Return the indices of a sampler; raises ConfigError for one that the dataset lacks."""
        try:
            indices = list(map(index, sampler))
        except TypeError as error:
            raise self.refuse(
                f"must give indices of samples, which the loop puts into batches: {error}"
            ) from error
        for number in indices:
            if not 0 <= number < self.samples:
                raise self.refuse(
                    f"gives sample {number}, and the dataset has {self.samples}, from 0"
                )
        return indices

    def check_may_be_endless(self, limit: int) -> None:
        """Raise ConfigError unless the phase is training for a number of steps."""
        is_training = self._context.is_training
        if is_training and self._context.experiment.steps is not None:
            return
        need = "an evaluation needs an end"
        if is_training:
            need = "training needs `steps` instead of `epochs`"
        raise self.refuse(
            f"has not ended after {format_count(limit, 'sample')} of {self.samples:,}; {need}",
            "if it has an end, define its __len__",
        )

    def check_ranks_agree(self, first: list[int]) -> None:
        """Raise ConfigError if ranks have different orders; collective."""
        digests = self._context.world.gather(hash(tuple(first)))
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise self.refuse(
                    f"gives rank {rank} another order than rank 0",
                    "return the order of the whole dataset; the loop splits it among ranks",
                )


class _EndlessOrder:
    """Order of a sampler without an end, in epochs as long as the dataset.

    An earlier epoch needs a new sampler.
    """

    def __init__(self, method: _SamplerMethod) -> None:
        self._method = method
        self._begin()

    def _begin(self) -> None:
        seed = self._method.seed
        with seeded(seed):
            sampler = self._method.call()
        _seed_own_generator(sampler, seed)
        self._epochs = with_own_generators(self._split(sampler), seed)
        self._epoch = -1
        self._indices: list[int] = []

    def _split(self, sampler: Any) -> Iterator[list[int]]:
        iterator = iter(sampler)
        while True:
            yield self._method.read(islice(iterator, self._method.samples))

    def __call__(self, epoch: int) -> list[int]:
        if epoch < self._epoch:
            self._begin()
        while self._epoch < epoch:
            self._indices = next(self._epochs)
            self._epoch += 1
        return self._indices


def _seed_own_generator(sampler: Any, seed: int) -> None:
    if isinstance(getattr(sampler, "generator", None), torch.Generator):
        sampler.generator.manual_seed(seed)
