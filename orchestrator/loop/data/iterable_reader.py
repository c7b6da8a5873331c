"""The reader of an iterable dataset on a rank: its loader, the length of a pass, and the passes."""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from orchestrator.errors import RunError
from orchestrator.experiment.checks.datasets import get_length, is_loader
from orchestrator.experiment.checks.iterable_data import (
    check_dataset,
    check_loader_has_state,
    choose_epoch_length,
    count_batches,
)
from orchestrator.loop.data.batch_loading import is_of_samples
from orchestrator.loop.data.distributed_sampler import check_shard_of_loader
from orchestrator.loop.data.iterable_length import BatchCounter, agree_on_length
from orchestrator.loop.data.iterable_shard import IterableShard
from orchestrator.loop.data.pass_position import PassPosition
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.randomness import random_state, restore_random_state, with_own_generators

_END: Any = object()


class IterableReader:
    """Reader of this rank's share of an iterable dataset, or of the task's own loader.

    It owns the loader with its worker processes, and reads one pass at a time, from the beginning
    or from a saved position.
    """

    def __init__(self, context: PhaseContext, data: Any, build_again: Callable[[], Any]) -> None:
        experiment = context.experiment
        self._context = context
        self._build_again = build_again
        self._share: IterableShard | None = None
        """This rank's samples; None if the task returns its own loader."""
        self.loader: Any = data
        world = context.world
        if is_loader(data):
            check_shard_of_loader(context.task.data, context.phase, data, world)
        else:
            is_shared = world.world_size > 1 or experiment.loader.num_workers > 0
            check_dataset(data, context.phase, is_shared=is_shared)
            reseeds = context.is_training
            self._share = IterableShard(
                data, world.rank, world.world_size, experiment.seed, reseeds=reseeds
            )
            self.loader = self._make_loader(
                self._share, context.generator, experiment.loader.num_workers
            )
        self.loader_workers = None if self._share is None else experiment.loader.num_workers
        """DataLoader workers that the experiment gives the loader; None for the task's own."""
        if context.is_training:
            check_loader_has_state(self.loader)

        self._own_length = self._count_batches()
        """This rank's batches in a pass; None if unknown."""
        pass_length = self._choose_pass_length()
        self.is_epoch_one_pass = pass_length is not None and experiment.epoch_steps is None
        self.length = pass_length or 0
        """Batches of this rank in an epoch; 0 if unknown."""
        if context.is_training:
            self.length = choose_epoch_length(experiment, pass_length)
        self._counter = BatchCounter(
            context.phase,
            context.world.place,
            self._own_length,
            is_training=context.is_training,
            is_epoch_one_pass=self.is_epoch_one_pass,
        )
        self._pass: Generator[Any, None, None] | None = None
        """The rest of the current pass."""

    def _make_loader(
        self,
        share: IterableShard,
        generator: torch.Generator,
        num_workers: int = 0,
        batch_size: int | None = None,
    ) -> Any:
        context = self._context
        options: dict[str, Any] = {
            "batch_size": batch_size or context.batch_size,
            "drop_last": context.drop_last,
            "generator": generator,
            "pin_memory": context.pin_memory,
        }
        if num_workers:
            options["num_workers"] = num_workers
        return context.task.loader(share, None, context.phase, options)

    def _count_batches(self) -> int | None:
        """Return the number of this rank's batches in a pass; None if unknown."""
        context = self._context
        if self._share is None:
            return get_length(self.loader)
        return count_batches(
            self._share.source,
            context.batch_size,
            rank=context.world.rank,
            world_size=context.world.world_size,
            num_workers=context.experiment.loader.num_workers,
            drop_last=context.drop_last,
        )

    def _choose_pass_length(self) -> int | None:
        """Return the number of batches after which training begins the next pass; None if unknown.
        Collective."""
        context = self._context
        if not context.is_training:
            return self._own_length
        # Training stops when a rank has no batch left, or that rank begins its next pass.
        stops = context.experiment.loader.on_exhausted == "stop"
        return agree_on_length(self._own_length, context.world, is_smallest=stops)

    # Passes

    def read(self, number: int) -> Iterator[Any]:
        """Return the batches of a pass.

        They raise RunError if the dataset fails, and torch's own error if the loader does: a
        process died, or took longer than the loader's timeout.
        """
        self._begin(number, 0)
        self._pass = self._iterate(iter(self.loader))
        return self._pass

    def read_from(self, position: PassPosition) -> Iterator[Any]:
        """Return the batches of a pass from a position on.

        Skipping to it does not change the training's random state.
        """
        if position.loader is None:
            return self.read(position.number)
        self._begin(position.number, position.batches)
        before = random_state()
        self.loader.load_state_dict(position.loader)
        batches = iter(self.loader)
        restore_random_state(before)
        self._pass = self._iterate(batches)
        return self._pass

    def _begin(self, number: int, batches: int) -> None:
        """Begin a pass, of which some batches have been read."""
        if self._share is not None:
            self._share.passes = number
        self._context.seed_generator(number)
        self._counter.begin(batches)

    def _iterate(self, batches: Iterator[Any]) -> Generator[Any, None, None]:
        context = self._context
        has_processes = getattr(self.loader, "num_workers", 0) > 0
        while True:
            try:
                batch = next(batches, _END)
            except Exception as error:
                if not is_of_samples(error, has_processes=has_processes):
                    raise
                raise RunError(
                    f"the {context.phase} dataset fails{context.world.place}: {type(error).__name__}: {error}"
                ) from error
            if batch is _END:
                self._counter.end()
                if not context.is_training and self._own_length is not None:
                    self.length = self._counter.count
                return
            self._counter.add()
            yield batch

    @property
    def batches(self) -> int:
        """Return how many batches of the current pass have been read."""
        return self._counter.count

    def finish_pass(self) -> None:
        """Exhaust the current pass, as a `for` loop does after the last batch, because code of the
        user may follow there.

        This does not change the training's random state. It does nothing within a pass, or if the
        length of a pass is unknown.
        """
        if self._pass is None or not self._counter.is_complete:
            return
        before = random_state()
        next(self._pass, None)
        restore_random_state(before)

    def finish_restored_pass(self, position: PassPosition) -> None:
        """Finish the pass of a restored position if the loader is the task's own, which may derive
        the order of the next pass from it. That of a dataset follows from the pass's number."""
        if self._share is None and position.loader is not None:
            self.read_from(position)
            self.finish_pass()

    def read_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Return the batches of the data, made again, because this one must keep its position."""
        data = self._build_again()
        seed = self._context.experiment.seed
        if self._share is None:
            return with_own_generators(data, seed)

        share = IterableShard(data, rank, world_size, seed)
        loader = self._make_loader(share, torch.Generator(), batch_size=batch_size)
        return with_own_generators(loader, seed)

    def close(self) -> None:
        """Finish the last pass, and release the loader with its processes."""
        self.finish_pass()
        if self._pass is not None:
            self._pass.close()
        self.loader = None
