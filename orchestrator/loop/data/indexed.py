"""Map-style data: a place in an epoch is a number of samples. Worker process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import ConfigError, Problem, RunError
from orchestrator.loop.data.sampling import sampled
from orchestrator.loop.data.sharding import SeededBatches, ShardedSampler, sequential, shuffled
from orchestrator.loop.step.task_errors import check_type, missing_batch, wrong_batch, wrong_sample
from orchestrator.loop.world import World
from orchestrator.randomness import with_own_generators
from orchestrator.task import Task


@runtime_checkable
class Loader(Protocol):
    """Yields batches, and has a length."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Indexed:
    """A phase's map-style dataset, in the order of the task's sampler.

    By default training shuffles it in each epoch, and an evaluation does not.
    """

    by_index = True
    runs_dry = is_over = False

    def __init__(
        self, task: Task, dataset: Any, phase: str, experiment: Experiment, world: World, generator: torch.Generator
    ) -> None:
        self._task, self._dataset, self._phase = task, dataset, phase
        self._experiment, self._world = experiment, world
        # Not the default generator: making an iterator must not draw from those that a resume restores.
        self._generator = generator
        self._trains = phase == "train"
        self._check_length()
        length = len(dataset)
        own = sampled(task, dataset, phase, experiment.seed, world)
        default = shuffled(length, experiment.seed) if self._trains else sequential(length)
        order, length = own or (default, length)
        self.size: int | None = length
        self.sampler = ShardedSampler(order, length, world.rank, world.world_size, even=self._trains)
        self.loader = self._loader(self.sampler)
        if self._trains and self.length() == 0:
            size = f"{length} samples on {world.world_size} rank{'s' if world.world_size > 1 else ''}"
            if not experiment.loader.drop_last:
                raise ConfigError(
                    [Problem("task", f"{type(task).__name__}.loader() gives no batch of the train data, of {size}")]
                )
            message = f"leaves no training batch: {size} do not fill one of batch_size {experiment.batch_size}"
            raise ConfigError([Problem("loader.drop_last", message)])

    def _check_length(self) -> None:
        samples, ranks = len(self._dataset), self._world.world_size
        if not self._trains and samples < ranks and self._task.meters():
            message = (
                f"has meters, which need a {self._phase} sample on each rank; there are {samples} for {ranks} ranks"
            )
            raise ConfigError([Problem("task", message)])

    def _loader(self, sampler: ShardedSampler) -> Any:
        options = self._experiment.loader
        size = self._experiment.batch_size if self._trains else options.eval_batch_size or self._experiment.batch_size
        drop_last = self._trains and options.drop_last
        batches = (
            SeededBatches(sampler, size, drop_last, self._experiment.seed)
            if options.num_workers
            else BatchSampler(sampler, size, drop_last)
        )
        pinned = self._world.device.type == "cuda" if options.pin_memory is None else options.pin_memory
        arguments: dict[str, Any] = {"generator": self._generator, "pin_memory": pinned}
        if options.num_workers:
            arguments |= {"num_workers": options.num_workers, "persistent_workers": True}
        made = self._task.loader(self._dataset, batches, self._phase, arguments)
        return check_type(
            self._task.loader, made, Loader, "a loader that can be gone through and has a length, such as a DataLoader"
        )

    def length(self, offset: int = 0) -> int:
        present, self.sampler.offset = self.sampler.offset, offset
        length = len(self.loader)
        self.sampler.offset = present
        return length

    def batches_left(self, epoch: int) -> None:
        """Return None, as the cursor knows it."""

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        self.sampler.begin(epoch, offset)
        self._generator.manual_seed(self._experiment.seed * 1_000_003 + epoch * 1_009 + self._world.rank)
        return batches_of(self.loader, self._phase)

    def ready(self) -> bool:
        return True

    def has_more(self) -> bool:
        return True

    def state_dict(self) -> None:
        return None

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        """Do nothing, as the counters know the place."""

    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        return batches_of(self.loader, self._phase), range(len(self.loader))

    def close(self) -> None:
        self.loader = None

    def first_sample(self) -> Any:
        loader = self._task.loader(
            self._dataset, BatchSampler([0], 1, drop_last=False), self._phase, {"generator": self._generator}
        )
        return next(self._with_own_generators(loader))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield this rank's batches once, in the order of the dataset or shuffled."""
        return self._with_own_generators(self._loader(self._whole(shuffled)))

    def _whole(self, is_shuffled: bool) -> ShardedSampler:
        length = len(self._dataset)
        order = shuffled(length, self._experiment.seed) if is_shuffled else sequential(length)
        return ShardedSampler(order, length, self._world.rank, self._world.world_size, even=False)

    def _with_own_generators(self, loader: Any) -> Iterator[Any]:
        return with_own_generators(batches_of(loader, self._phase), self._experiment.seed)


def batches_of(loader: Iterable[Any], phase: str) -> Iterator[Any]:
    """Yield the batches of a loader; raises RunError with the sample and the phase if one cannot be loaded.

    A loader in this process does not use its own iterator, which does work for processes and for a profiler around each
    batch. That costs more than all of the loop's own work.
    """
    if type(loader) is not DataLoader or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return iter(loader)
    if loader.num_workers == 0 and not loader.pin_memory:
        return _fetched_here(loader, loader.batch_sampler, phase)
    return _fetched_elsewhere(loader, loader.batch_sampler, phase)


def _fetched_here(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    dataset, collate = loader.dataset, loader.collate_fn
    # A dataset that can fetches the samples of a batch all at once.
    fetch = getattr(dataset, "__getitems__", None) or (lambda indices: [dataset[index] for index in indices])
    for indices in batches:
        try:
            batch = collate(fetch(indices))
        except Exception as error:  # the user's own code, which may raise anything
            raise _explained(loader, indices, phase, error)  # noqa: B904  # its cause is chosen there
        if batch is None:
            raise missing_batch(collate)
        yield batch


def _fetched_elsewhere(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    iterator, made = iter(loader), 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # what a process of the loader has raised, of whatever class
            if not _raised_again(error):
                raise
            # `_explained` chooses the cause.
            raise _explained(loader, next(islice(iter(batches), made, None)), phase, error)  # noqa: B904
        if batch is None:
            raise missing_batch(loader.collate_fn)
        made += 1
        yield batch


def _raised_again(error: Exception) -> bool:
    """Return whether a loader's process has raised this, and not torch, which reports a lost process."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "reraise"


def _explained(loader: Any, indices: Sequence[int], phase: str, error: Exception) -> RunError:
    """Load the samples of a batch one by one, and return an error that names the one that fails, or all."""
    samples = []
    for index in indices:
        try:
            samples.append(loader.dataset[index])
        except Exception as again:
            # The user sees the original error, without the first attempt.
            again.__suppress_context__ = True
            failure = wrong_sample(phase, index, again)
            failure.__cause__ = again
            return failure
    failure = wrong_batch(phase, indices, samples, error)
    failure.__cause__ = error
    return failure
