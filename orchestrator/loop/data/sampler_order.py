"""The order of a task's own sampler, checked to be the same on all ranks and each time."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from hooks.errors import add_article
from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.datasets import get_length
from orchestrator.loop.data.distributed_sampler import call_without_distributed_sampler
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.sampling import Order
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
    again = order
    first = order(0)
    limit = method.find_limit(sampler)
    if len(first) > limit:
        method.check_may_be_endless(limit)
        order = _EndlessOrder(method)
        again = _EndlessOrder(method)
        first = order(0)

    if not first:
        raise method.refuse("gives no sample")
    if again(0) != first:
        raise method.refuse(
            "gives another order on a second call for the same epoch, so ranks and a resumed run would disagree",
            "draw from the global generators of torch, numpy or random, from its `generator`, or by set_epoch",
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
        """Return the order of a sampler, or one that draws by weights."""
        if isinstance(sampler, Sampler) or hasattr(sampler, "set_epoch"):
            return self._make_sampler_order(sampler)
        return self._make_weighted_order(sampler)

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

    def _make_weighted_order(self, weights: Iterable[float]) -> Order:
        """Return an order that draws with replacement, as torch's WeightedRandomSampler does."""
        tensor = self._convert_weights(weights)
        if tensor.shape != (self.samples,):
            samples = format_count(self.samples, "sample")
            raise self.refuse(
                f"gives weights of shape {tuple(tensor.shape)}, and the dataset has {samples}"
            )

        def order(epoch: int) -> list[int]:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            try:
                drawn = torch.multinomial(
                    tensor, self.samples, replacement=True, generator=generator
                )
            except RuntimeError as error:
                raise self.refuse(
                    f"gives weights that torch.multinomial refuses: {error}"
                ) from error
            indices: list[int] = drawn.tolist()
            return indices

        return order

    def _convert_weights(self, weights: Iterable[float]) -> Tensor:
        """Return weights as a tensor, with one too many if there are more than samples."""
        try:
            if isinstance(weights, Mapping):
                raise TypeError
            values = weights
            if not isinstance(weights, Tensor):
                values = list(islice(weights, self.samples + 1))
            return torch.as_tensor(values, dtype=torch.float64).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise self.refuse(
                f"gives {add_article(type(weights).__name__)}; expected a Sampler, a weight for each sample, or None"
            ) from error

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
