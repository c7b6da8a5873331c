"""Map-style data, whose position in an epoch is a number of samples. Runs in workers."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import BatchSampler

from hooks.loader_parts import describe_attributes, find_parts, find_parts_with_epoch
from hooks.private_torch import end_processes
from orchestrator.errors import ConfigError, TaskError
from orchestrator.experiment.checks.data import describe_size, make_drop_last_error
from orchestrator.experiment.checks.datasets import get_length
from orchestrator.loop.data.batch_loading import iterate_batches
from orchestrator.loop.data.distributed_sampler import call_without_distributed_sampler
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData, TrainingData
from orchestrator.loop.data.sampler_order import find_sampler_order
from orchestrator.loop.data.sampling import Order, SeededBatches, ShardedSampler, default_order
from orchestrator.loop.task_errors import require_type
from orchestrator.randomness import with_own_generators
from orchestrator.units import format_count, number_epoch


@runtime_checkable
class SizedIterable(Iterable[Any], Sized, Protocol):
    """An iterable of batches with a length."""


class MapStyleData(PhaseData, TrainingData):
    """A phase's map-style dataset, in the order of the task's sampler.

    By default, training shuffles it in each epoch; an evaluation does not.
    """

    by_index = True
    size: int

    def __init__(self, context: PhaseContext, dataset: Any) -> None:
        super().__init__(context)
        world = context.world
        self.dataset = dataset
        self._samples = len(dataset)
        self._attributes: list[Any] = []
        """Attributes of the dataset and its parts, when the loader's processes started."""
        order, length = self._find_order()
        self.size = length
        self.sampler = ShardedSampler(
            order, length, world.rank, world.world_size, even=context.is_training
        )
        self.loader = self._make_loader(self.sampler)
        if context.is_training and self.length() == 0:
            raise self._explain_no_batch(length)

    def _find_order(self) -> tuple[Order, int]:
        """Return the order of the samples of all ranks, and their number; collective."""
        context = self._context
        own = find_sampler_order(context, self.dataset)
        if own is not None:
            return own
        length = len(self.dataset)
        seed = context.experiment.seed
        return default_order(length, seed, is_shuffled=context.is_training), length

    def _explain_no_batch(self, samples: int) -> ConfigError:
        context = self._context
        world_size = context.world.world_size
        if context.experiment.loader.drop_last:
            return make_drop_last_error(samples, world_size, context.batch_size)
        size = describe_size(samples, world_size)
        return ConfigError.at(
            "task",
            f"{type(context.task).__name__}.loader() gives no batch of the train data, of {size}",
        )

    def _make_loader(self, sampler: ShardedSampler) -> Any:
        context = self._context
        processes = context.experiment.loader.num_workers
        arguments: dict[str, Any] = {
            "generator": context.generator,
            "pin_memory": context.pin_memory,
        }
        batches = BatchSampler(sampler, context.batch_size, context.drop_last)
        if processes:
            seed = context.experiment.seed
            batches = SeededBatches(sampler, context.batch_size, context.drop_last, seed)
            arguments |= {"num_workers": processes, "persistent_workers": True}
        loader = call_without_distributed_sampler(
            context.task.loader,
            context.phase,
            self.dataset,
            batches,
            context.phase,
            arguments,
            advice="use `batches`, which are this rank's",
        )
        expected = "an iterable with a length, such as a DataLoader"
        require_type(context.task.loader, loader, SizedIterable, expected)
        if get_length(loader) is None:
            raise ConfigError.at(
                "task",
                f"{type(context.task).__name__}.loader() gives a loader of {context.phase} whose"
                " length is unknown",
                suggestion="define __len__ of its batch sampler",
            )
        return loader

    def length(self, offset: int = 0) -> int:
        before = self.sampler.offset
        self.sampler.offset = offset
        length = len(self.loader)
        self.sampler.offset = before
        return length

    def as_training_data(self) -> TrainingData:
        return self

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        samples = len(self.dataset)
        if samples != self._samples:
            number = number_epoch(epoch)
            size = format_count(samples, "sample")
            raise TaskError(
                f"the train dataset has {size} in epoch {number}, but it had {self._samples:,} at the start."
                " Keep its length, and choose samples by their index and the epoch"
            )
        self.sampler.begin(epoch, offset)
        self._context.seed_generator(epoch)
        return self._iterate()

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        """Do nothing, because any number of ranks can continue where the loop's counters say."""

    def evaluation_batches(self, number: int) -> tuple[Iterator[Any], Iterable[object]]:
        return self._iterate(), range(len(self.loader))

    def _iterate(self) -> Iterator[Any]:
        """Return the batches of the loader.

        They come from new processes if the dataset or the collator may have changed.
        """
        loader = self.loader
        if getattr(loader, "persistent_workers", False):
            attributes = describe_attributes(find_parts(loader.dataset, loader.collate_fn))
            has_epoch = bool(find_parts_with_epoch(loader.dataset, loader.collate_fn))
            if has_epoch or attributes != self._attributes:
                end_processes(loader)
            self._attributes = attributes
        return iterate_batches(loader, self._context.phase)

    def first_sample(self) -> Any:
        context = self._context
        batches = BatchSampler([0], 1, drop_last=False)
        arguments = {"generator": context.generator}
        loader = context.task.loader(self.dataset, batches, context.phase, arguments)
        return next(self._with_own_generators(loader))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        context = self._context
        length = len(self.dataset)
        world = context.world
        order = default_order(length, context.experiment.seed, is_shuffled=shuffled)
        sampler = ShardedSampler(order, length, world.rank, world.world_size, even=False)
        return self._with_own_generators(self._make_loader(sampler))

    def _with_own_generators(self, loader: Any) -> Iterator[Any]:
        batches = iterate_batches(loader, self._context.phase)
        return with_own_generators(batches, self._context.experiment.seed)
