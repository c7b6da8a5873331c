"""A rank's passes over iterable training data, one after the other. Runs in workers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchestrator.errors import TaskError
from orchestrator.loop.data.iterable_reader import IterableReader
from orchestrator.loop.data.pass_position import PassPosition
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state

_NO_BATCH: Any = object()


class Passes(Iterator[Any], ABC):
    """The training batches of a rank from a position on."""

    is_exhausted = False
    """True once all ranks have learned that one of them has no batch left."""

    def __init__(self, reader: IterableReader, world: World, start: PassPosition) -> None:
        self._reader = reader
        self._world = world
        self._start = start
        self._number = start.number
        self._batches = reader.read_from(start)
        """The rest of the current pass."""

    @abstractmethod
    def fetch_ahead(self) -> bool:
        """Fetch the next batch; return whether every rank has one. Collective."""

    @abstractmethod
    def has_more(self) -> bool:
        """Return whether every rank has a batch after this phase; collective."""

    def find_position(self) -> PassPosition:
        """Return the position after the last batch."""
        return PassPosition(
            self._start.epoch,
            self._number,
            self._start.loader_workers,
            self._reader.batches,
            self._reader.loader_state(),
        )


class EndlessPasses(Passes):
    """Passes of which the next one begins where one ends."""

    def __init__(self, reader: IterableReader, world: World, start: PassPosition) -> None:
        super().__init__(reader, world, start)
        self._has_batch = start.loader is not None
        """True if the current pass has had a batch; the rest of a restored pass may have none."""

    def __next__(self) -> Any:
        """Return the next batch; raises TaskError if a pass has no batch."""
        batch = next(self._batches, _NO_BATCH)
        while batch is _NO_BATCH:
            self._begin_next_pass()
            batch = next(self._batches, _NO_BATCH)
        self._has_batch = True
        return batch

    def _begin_next_pass(self) -> None:
        if not self._has_batch:
            raise TaskError(
                f"the train dataset has no batch{self._world.place} in pass"
                f" {self._number + 1}; __iter__ must start over in each pass"
            )
        self._number += 1
        self._batches = self._reader.read(self._number)
        self._has_batch = False

    def fetch_ahead(self) -> bool:
        return True

    def has_more(self) -> bool:
        return True


class StoppingPasses(Passes):
    """A pass with which all ranks end the run where a rank's pass ends before the epoch."""

    def __init__(self, reader: IterableReader, world: World, start: PassPosition) -> None:
        super().__init__(reader, world, start)
        self._next_batch = _NO_BATCH
        """The batch that was fetched ahead, if there is one."""
        self._position_ahead: PassPosition | None = None
        """Position before the batch that was fetched ahead of its phase."""
        if start.random is not None:
            self._fetch_again(start.random)

    def _fetch_again(self, random: dict[str, Any]) -> None:
        """Fetch the batch that was fetched ahead of the checkpoint, with that time's random state."""
        self._position_ahead = self._start
        before = random_state()
        restore_random_state(random)
        self._fetch()
        restore_random_state(before)

    def __next__(self) -> Any:
        """Return the next batch, which `fetch_ahead` may have fetched."""
        self._fetch()
        batch = self._next_batch
        if batch is _NO_BATCH:
            raise StopIteration
        self._position_ahead = None
        self._next_batch = _NO_BATCH
        return batch

    def _fetch(self) -> None:
        """Fetch the next batch, unless that was done ahead."""
        if self._next_batch is _NO_BATCH:
            self._next_batch = next(self._batches, _NO_BATCH)

    def fetch_ahead(self) -> bool:
        self._fetch()
        is_at_end = self._next_batch is _NO_BATCH
        (is_exhausted,) = self._world.maximum([float(is_at_end)])
        self.is_exhausted = bool(is_exhausted)
        return not self.is_exhausted

    def has_more(self) -> bool:
        if self._reader.is_epoch_one_pass:
            return True
        # A phase without an iteration leaves the batch that was fetched ahead of it.
        if self._position_ahead is None:
            self._position_ahead = replace(self.find_position(), random=random_state())
        return self.fetch_ahead()

    def find_position(self) -> PassPosition:
        if self.is_exhausted:
            return PassPosition(
                self._start.epoch, self._number, self._start.loader_workers, is_exhausted=True
            )
        return self._position_ahead or super().find_position()
