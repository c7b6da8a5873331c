"""The reader of an iterable dataset on a rank: its loader, the length of a pass, and the passes."""

from collections.abc import Callable, Iterator
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
        self.share: IterableShard | None = None
        """This rank's samples; None if the task returns its own loader."""
        self.loader: Any = data
        world = context.world
        if is_loader(data):
            check_shard_of_loader(context.task.data, context.phase, data, world)
        else:
            is_shared = world.world_size > 1 or experiment.loader.num_workers > 0
            check_dataset(data, context.phase, is_shared=is_shared)
            reseeds = context.is_training
            self.share = IterableShard(
                data, world.rank, world.world_size, experiment.seed, reseeds=reseeds
            )
            self.loader = self._make_loader(
                self.share, context.generator, experiment.loader.num_workers
            )
        if context.is_training:
            check_loader_has_state(self.loader)

        self._own_length = self._count_batches()
        """This rank's batches in a pass; None if unknown."""
        pass_length = self._choose_pass_length()
        self.is_whole = pass_length is not None and self._own_length == pass_length
        """True if this rank reads all of its batches, whose number is known, before the next pass
        begins."""
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
        if self.share is None:
            return get_length(self.loader)
        return count_batches(
            self.share.source,
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

    def read(self, number: int, position: Any = None) -> Iterator[Any]:
        """Return the batches of a pass, or its rest from `position` on.

        Skipping to it does not change the training's random state. The batches raise RunError if
        the dataset fails, and torch's own error if the loader does: a process died, or took longer
        than the loader's timeout.
        """
        if self.share is not None:
            self.share.passes = number
        self._context.seed_generator(number)
        self._counter.begin(is_from_start=position is None)
        if position is None:
            return self._iterate(iter(self.loader))
        before = random_state()
        self.loader.load_state_dict(position)
        batches = iter(self.loader)
        restore_random_state(before)
        return self._iterate(batches)

    def _iterate(self, batches: Iterator[Any]) -> Iterator[Any]:
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
                    self.length = self._counter.count or 0
                return
            self._counter.add()
            yield batch

    @property
    def is_at_end(self) -> bool:
        """True after the last batch of a pass whose length is known."""
        return self._own_length is not None and self._counter.count == self._own_length

    def read_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Return the batches of the data, made again, because this one must keep its position."""
        data = self._build_again()
        seed = self._context.experiment.seed
        if self.share is None:
            return with_own_generators(data, seed)

        share = IterableShard(data, rank, world_size, seed)
        loader = self._make_loader(share, torch.Generator(), batch_size=batch_size)
        return with_own_generators(loader, seed)

    def close(self) -> None:
        self.loader = None
