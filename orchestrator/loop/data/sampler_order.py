"""The order of a task's own sampler, checked to be the same on all ranks and each time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.data import get_length
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.sampling import Order
from orchestrator.loop.world import World
from orchestrator.randomness import seeded, with_own_generators
from orchestrator.task import Task


def find_sampler_order(
    task: Task, dataset: Any, phase: str, experiment: Experiment, world: World
) -> tuple[Order, int] | None:
    """Return the order of `task.sampler` for a phase and its length, or None if it has no sampler.

    Collective if there is a sampler. Raises ConfigError unless it is a repeatable order of this
    dataset. A sampler without an end may train for a number of steps; an epoch then has as many
    samples as the dataset.
    """
    sampler = task.sampler(dataset, phase)
    if sampler is None:
        return None
    samples = len(dataset)
    seed = experiment.seed
    method = f"{type(task).__name__}.sampler() for {phase}"
    is_sampler = isinstance(sampler, Sampler) or hasattr(sampler, "set_epoch")
    make_order = _make_sampler_order if is_sampler else _make_weighted_order
    order = make_order(sampler, samples, seed, method)
    again = order
    first = order(0)
    limit = _find_limit(sampler, samples)
    if len(first) > limit:
        if phase != "train" or experiment.steps is None:
            raise _explain_endless(method, phase, samples, limit)
        make_sampler = partial(task.sampler, dataset, phase)
        order = _EndlessOrder(make_sampler, samples, seed, method)
        again = _EndlessOrder(make_sampler, samples, seed, method)
        first = order(0)
    if not first:
        raise _problem(method, "gives no sample")
    if again(0) != first:
        raise _problem(
            method,
            "gives another order on a second call for the same epoch, so ranks and a resumed run would disagree",
            "draw from the global generators of torch, numpy or random, from its `generator`, or by set_epoch",
        )
    _check_ranks_agree(method, first, world)
    return order, len(first)


class _EndlessOrder:
    """Order of a sampler without an end, in epochs of `length` samples.

    An earlier epoch needs a new sampler.
    """

    def __init__(
        self, make_sampler: Callable[[], Any], length: int, seed: int, method: str
    ) -> None:
        self._make_sampler = make_sampler
        self._length = length
        self._seed = seed
        self._method = method
        self._begin()

    def _begin(self) -> None:
        with seeded(self._seed):
            sampler = self._make_sampler()
        _seed_own_generator(sampler, self._seed)
        self._epochs = with_own_generators(self._split(sampler), self._seed)
        self._epoch = -1
        self._indices: list[int] = []

    def _split(self, sampler: Any) -> Iterator[list[int]]:
        iterator = iter(sampler)
        while True:
            yield _read(self._length, self._method, islice(iterator, self._length))

    def __call__(self, epoch: int) -> list[int]:
        if epoch < self._epoch:
            self._begin()
        while self._epoch < epoch:
            self._indices = next(self._epochs)
            self._epoch += 1
        return self._indices


def _explain_endless(method: str, phase: str, samples: int, limit: int) -> ConfigError:
    need = "an evaluation needs an end"
    if phase == "train":
        need = "training needs `steps` instead of `epochs`"
    return _problem(
        method,
        f"has not ended after {limit} samples of {samples}; {need}",
        "if it has an end, define its __len__",
    )


def _check_ranks_agree(method: str, first: list[int], world: World) -> None:
    """Raise ConfigError if ranks have different orders; collective."""
    digests = world.gather(hash(tuple(first)))
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise _problem(
                method,
                f"gives rank {rank} another order than rank 0",
                "return the order of the whole dataset; the loop splits it among ranks",
            )


def _find_limit(sampler: Any, samples: int) -> int:
    """Return the number of samples after which a sampler counts as endless.

    A sampler's length may be the dataset's, although it has no end.
    """
    return max(10 * samples, get_length(sampler) or 0)


def _problem(method: str, message: str, advice: str | None = None) -> ConfigError:
    return ConfigError.at("task", f"{method} {message}", suggestion=advice)


def _make_weighted_order(weights: Iterable[float], samples: int, seed: int, method: str) -> Order:
    """Return an order that draws with replacement, as torch's WeightedRandomSampler does."""
    tensor = _convert_weights(weights, samples, method)
    if tensor.shape != (samples,):
        raise _problem(
            method,
            f"gives weights of shape {tuple(tensor.shape)}, and the dataset has {samples} samples",
        )

    def order(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + epoch)
        try:
            drawn = torch.multinomial(tensor, samples, replacement=True, generator=generator)
        except RuntimeError as error:
            raise _problem(
                method, f"gives weights that torch.multinomial refuses: {error}"
            ) from error
        indices: list[int] = drawn.tolist()
        return indices

    return order


def _convert_weights(weights: Iterable[float], samples: int, method: str) -> Tensor:
    """Return weights as a tensor, with one too many if there are more than samples."""
    try:
        if isinstance(weights, Mapping):
            raise TypeError
        values = weights if isinstance(weights, Tensor) else list(islice(weights, samples + 1))
        return torch.as_tensor(values, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _problem(
            method,
            f"gives a {type(weights).__name__}; expected a Sampler, a weight for each sample, or None",
        ) from error


def _make_sampler_order(sampler: Any, samples: int, seed: int, method: str) -> Order:
    """Return the order of a sampler, with all generators seeded for the epoch.

    A sampler without an end gives one index too many.
    """
    limit = _find_limit(sampler, samples)

    def order(epoch: int) -> list[int]:
        with seeded(seed + epoch):
            _seed_own_generator(sampler, seed + epoch)
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            return _read(samples, method, islice(iter(sampler), limit + 1))

    return order


def _seed_own_generator(sampler: Any, seed: int) -> None:
    if isinstance(getattr(sampler, "generator", None), torch.Generator):
        sampler.generator.manual_seed(seed)


def _read(samples: int, method: str, sampler: Iterable[Any]) -> list[int]:
    """Return the indices of a sampler; raises ConfigError for one that the dataset lacks."""
    try:
        indices = list(map(index, sampler))
    except TypeError as error:
        raise _problem(
            method, f"must give indices of samples, which the loop puts into batches: {error}"
        ) from error
    for number in indices:
        if not 0 <= number < samples:
            raise _problem(method, f"gives sample {number}, and the dataset has {samples}, from 0")
    return indices
