"""Map-style data, whose position in an epoch is a number of samples. Runs in workers."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from traceback import extract_tb
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hooks.errors import describe_error
from hooks.loader_parts import describe_attributes, find_parts, find_parts_with_epoch
from hooks.metrics.names import kind_of
from hooks.parameter_names import listed
from hooks.private_torch import end_processes, tree_leaves
from orchestrator.errors import ConfigError, RunError, TaskError
from orchestrator.experiment.checks.data import describe_size, get_length, make_drop_last_error
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.data.sampling import (
    SeededBatches,
    ShardedSampler,
    default_order,
    find_sampler_order,
)
from orchestrator.loop.task_errors import check_type, unexpected
from orchestrator.loop.world import World
from orchestrator.randomness import with_own_generators
from orchestrator.task import Task

_BATCH = "a batch made from the samples"


@runtime_checkable
class Loader(Iterable[Any], Sized, Protocol):
    """An iterable of batches with a length."""


class Indexed(PhaseData):
    """A phase's map-style dataset, in the order of the task's sampler.

    By default, training shuffles it in each epoch; an evaluation does not.
    """

    by_index = True

    def __init__(
        self,
        task: Task,
        dataset: Any,
        phase: str,
        experiment: Experiment,
        world: World,
        generator: torch.Generator,
    ) -> None:
        super().__init__(task, phase, experiment, world, generator)
        self._dataset, self._samples = dataset, len(dataset)
        default = default_order(len(dataset), experiment.seed, is_shuffled=self._is_training)
        own = find_sampler_order(task, dataset, phase, experiment, world)
        order, length = own or (default, len(dataset))
        is_evaluated = kind_of(phase) == "test" or (
            not self._is_training and experiment.validate_every.count > 0
        )
        if is_evaluated and length < world.world_size and task.meters():
            message = f"has meters, which need a {phase} sample on each rank; there are {length} for {world.world_size}"
            raise ConfigError.at("task", f"{message} ranks")
        self.size = length
        self.sampler = ShardedSampler(
            order, length, world.rank, world.world_size, even=self._is_training
        )
        self.loader = self._make_loader(self.sampler)
        self._attributes: list[Any] = []
        """Attributes of the dataset and its parts, when the loader's processes started."""
        if self._is_training and self.length() == 0:
            if experiment.loader.drop_last:
                raise make_drop_last_error(length, world.world_size, experiment.batch_size)
            size = describe_size(length, world.world_size)
            raise ConfigError.at(
                "task",
                f"{type(task).__name__}.loader() gives no batch of the train data, of {size}",
            )

    def _make_loader(self, sampler: ShardedSampler) -> Any:
        batches = BatchSampler(sampler, self._batch_size, self._drop_last)
        arguments: dict[str, Any] = {"generator": self._generator, "pin_memory": self._pin_memory}
        if processes := self._experiment.loader.num_workers:
            batches = SeededBatches(
                sampler, self._batch_size, self._drop_last, self._experiment.seed
            )
            arguments |= {"num_workers": processes, "persistent_workers": True}
        loader = self._task.loader(self._dataset, batches, self._phase, arguments)
        expected = "an iterable with a length, such as a DataLoader"
        if get_length(check_type(self._task.loader, loader, Loader, expected)) is None:
            message = f"{type(self._task).__name__}.loader() gives a loader of {self._phase} whose length is unknown"
            raise ConfigError.at("task", message, suggestion="define __len__ of its batch sampler")
        return loader

    def length(self, offset: int = 0) -> int:
        before, self.sampler.offset = self.sampler.offset, offset
        length = len(self.loader)
        self.sampler.offset = before
        return length

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        samples = len(self._dataset)
        if samples != self._samples:
            message = (
                f"the train dataset has {samples} samples in epoch {epoch}, "
                f"but it had {self._samples} at the start"
            )
            raise TaskError(
                f"{message}; keep its length, and choose samples by their index and the epoch"
            )
        self.sampler.begin(epoch, offset)
        self._seed_generator(epoch)
        return self._iterate()

    def evaluation_batches(self, number: int) -> tuple[Iterator[Any], Iterable[object]]:
        return self._iterate(), range(len(self.loader))

    def _iterate(self) -> Iterator[Any]:
        """Return the batches of the loader, from new processes if the dataset or the collator may
        have changed."""
        loader = self.loader
        if getattr(loader, "persistent_workers", False):
            held = loader.dataset, loader.collate_fn
            attributes = describe_attributes(find_parts(*held))
            if attributes != self._attributes or find_parts_with_epoch(*held):
                end_processes(loader)
            self._attributes = attributes
        return iterate_batches(loader, self._phase)

    def first_sample(self) -> Any:
        loader = self._task.loader(
            self._dataset,
            BatchSampler([0], 1, drop_last=False),
            self._phase,
            {"generator": self._generator},
        )
        return next(self._with_own_generators(loader))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        length, world = len(self._dataset), self._world
        order = default_order(length, self._experiment.seed, is_shuffled=shuffled)
        sampler = ShardedSampler(order, length, world.rank, world.world_size, even=False)
        return self._with_own_generators(self._make_loader(sampler))

    def _with_own_generators(self, loader: Any) -> Iterator[Any]:
        return with_own_generators(iterate_batches(loader, self._phase), self._experiment.seed)


def iterate_batches(loader: Iterable[Any], phase: str) -> Iterator[Any]:
    """Yield the batches of a loader; raises RunError that names a sample that cannot be loaded.

    If the loader has no processes, this does not use torch's iterator, whose overhead is larger
    than the loop's.
    """
    if (
        type(loader) is not DataLoader
        or loader.batch_sampler is None
        or isinstance(loader.dataset, IterableDataset)
    ):
        return iter(loader)
    in_process = loader.num_workers == 0 and not loader.pin_memory
    return (_fetch_in_process if in_process else _fetch_elsewhere)(
        loader, loader.batch_sampler, phase
    )


def _fetch_in_process(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    dataset, collate = loader.dataset, loader.collate_fn
    # Some datasets fetch all samples of a batch together.
    fetch = getattr(dataset, "__getitems__", None)
    for indices in batches:
        try:
            batch = collate(fetch(indices) if fetch else [dataset[index] for index in indices])
        except Exception as error:  # user code may raise anything
            raise _explain(loader, indices, phase, error)  # noqa: B904  # `_explain` sets the cause
        if batch is None:
            raise unexpected(collate, "", None, _BATCH)
        yield batch


def _fetch_elsewhere(loader: Any, batches: Iterable[list[int]], phase: str) -> Iterator[Any]:
    iterator, count = iter(loader), 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # user code may raise anything, even in a loader process
            # Another error is torch's own: a process died, or a batch cannot be pinned.
            if extract_tb(error.__traceback__)[
                -1
            ].name != "reraise" or "in pin memory thread" in str(error):
                raise
            # `_explain` sets the cause.
            raise _explain(loader, next(islice(iter(batches), count, None)), phase, error)  # noqa: B904
        if batch is None:
            raise unexpected(loader.collate_fn, "", None, _BATCH)
        count += 1
        yield batch


def _explain(loader: Any, indices: Sequence[int], phase: str, error: Exception) -> RunError:
    """Load the samples of a batch one by one, and return an error that names the failing sample, or
    all samples."""
    shapes = []
    for index in indices:
        try:
            sample = loader.dataset[index]
            tensors = [
                str(tuple(leaf.shape)) for leaf in tree_leaves(sample) if hasattr(leaf, "shape")
            ]
            shapes.append(", ".join(tensors) or type(sample).__name__)
        except Exception as cause:
            cause.__suppress_context__ = True  # hides the first attempt
            failure = RunError(
                f"sample {index} of the {phase} data cannot be fetched: {describe_error(cause)}"
            )
            failure.__cause__ = cause
            return failure
    names = f"samples {listed(list(map(str, indices)), 4)}"
    for index, shape in zip(indices, shapes, strict=True):
        if shape != shapes[0]:
            names = f"sample {indices[0]} (shape {shapes[0]}) and sample {index} (shape {shape})"
            break
    failure = RunError(
        f"{names} of the {phase} data cannot be collated: {describe_error(error)}; return samples of one shape, or"
        " define collate() in the task"
    )
    failure.__cause__ = error
    return failure
