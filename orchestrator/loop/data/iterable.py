"""An iterable dataset in training and in evaluations, and its position in a checkpoint. Runs in
workers."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from hooks.loader_parts import find_parts_with_epoch
from orchestrator.errors import CheckpointError, TaskError
from orchestrator.loop.data.iterable_reader import IterableReader
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData
from orchestrator.randomness import random_state, restore_random_state

_NO_BATCH: Any = object()


@dataclass(frozen=True)
class PassPosition:
    """A rank's position in the passes over the training data."""

    epoch: int
    number: int
    """Number of the pass, from 0."""
    processes: int
    """DataLoader workers, whose states the loader's state contains."""
    loader: Any = None
    """State of the loader; None at the beginning of a pass and after the last one."""
    is_exhausted: bool = False
    """True if training has ended because a rank had no batch left."""
    random: dict[str, Any] | None = None
    """Random state with which the next batch was fetched, if that was before the checkpoint."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "PassPosition":
        """Return the position that a checkpoint holds as plain data."""
        return cls(
            data["epoch"],
            data["pass"],
            data["processes"],
            data["loader"],
            data["is_exhausted"],
            data.get("random"),
        )

    def as_data(self) -> dict[str, Any]:
        """Return the position as plain data, for a checkpoint."""
        return {
            "epoch": self.epoch,
            "pass": self.number,
            "processes": self.processes,
            "loader": self.loader,
            "is_exhausted": self.is_exhausted,
            "random": self.random,
        }


class IterableData(PhaseData):
    """A phase's iterable dataset or loader, and the position in it.

    Training reads it in passes. If the length of a pass is known and `epoch_steps` is not set, an
    epoch is a pass; otherwise epochs and passes are independent. A subclass says what follows if a
    rank's pass ends before the epoch.
    """

    def __init__(self, context: PhaseContext, data: Any, build_again: Callable[[], Any]) -> None:
        super().__init__(context)
        self._reader = IterableReader(context, data, build_again)
        self.loader = self._reader.loader
        self._epoch = 0
        self._pass_number = 0
        """Number of the current pass, from 0."""
        self._pass: Iterator[Any] = iter(())
        """The rest of this pass."""
        self._batches: Iterator[Any] | None = None
        """The batches for training; None before training begins."""
        self._restored: PassPosition | None = None
        """Restored position, until training continues there."""

    def length(self, offset: int = 0) -> int:
        return self._reader.length

    # Training

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        if self._batches is None or self._reader.is_epoch_one_pass:
            start = self._find_start(epoch)
            self._epoch = epoch
            self._read_pass(start.number, start.loader)
            self._batches = self._iterate_from(start)
        return self._batches

    @abstractmethod
    def _iterate_from(self, start: PassPosition) -> Iterator[Any]:
        """Return the training batches from a position on, whose pass is already being read."""

    def _find_start(self, epoch: int) -> PassPosition:
        """Return the position at which an epoch begins: the restored one, or that of a new pass,
        for which the last one is ended."""
        restored = self._restored
        self._restored = None
        if restored is not None and self._is_within_pass(restored, epoch):
            return restored
        if self._batches is not None:
            self._end_pass()
        elif restored is not None:
            self._end_restored_pass(restored)

        number = 0 if restored is None else restored.number + 1
        if self._reader.is_epoch_one_pass:
            number = epoch
        return PassPosition(epoch, number, self._processes)

    def _is_within_pass(self, position: PassPosition, epoch: int) -> bool:
        """Return whether an epoch continues the pass of a restored position."""
        if position.is_exhausted:
            return False
        return not self._reader.is_epoch_one_pass or position.epoch == epoch

    def _end_restored_pass(self, position: PassPosition) -> None:
        """End the pass of a restored position, because the task's own loader may derive the order of
        the next pass from it."""
        if self._reader.share is None and position.loader is not None:
            self._read_pass(position.number, position.loader)
            self._end_pass()

    def _read_pass(self, number: int, loader_state: Any = None) -> None:
        self._pass_number = number
        self._pass = self._reader.read(number, loader_state)

    def _end_pass(self) -> None:
        """Exhaust a pass after its last batch, as a `for` loop does.

        This does not change the training's random state.
        """
        if self._reader.is_whole and self._pass_number == self._epoch:
            before = random_state()
            next(self._pass, None)
            restore_random_state(before)

    # Position

    @property
    def _processes(self) -> int:
        return self._context.experiment.loader.num_workers

    def state_dict(self) -> dict[str, Any] | None:
        if self._batches is None:
            start = PassPosition(self._epoch, self._pass_number, self._processes)
            return (self._restored or start).as_data()
        return self._find_position().as_data()

    def _find_position(self) -> PassPosition:
        """Return the current position, after training began."""
        return PassPosition(
            self._epoch, self._pass_number, self._processes, self.loader.state_dict()
        )

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        if world_size != self._context.world.world_size:
            raise CheckpointError(
                f"an iterable dataset continues only on as many ranks as before: {world_size}, "
                f"got {self._context.world.world_size}; resume with --workers {world_size}"
            )
        if state is None:
            raise CheckpointError(
                "the train data is iterable, but the checkpoint was made with map-style data and has no position in it"
            )
        position = PassPosition.from_data(state)
        if position.loader is not None and position.processes != self._processes:
            raise CheckpointError(
                f"an iterable dataset continues only with as many DataLoader workers as before: set"
                f" loader.num_workers={position.processes}, got {self._processes}"
            )
        self._restored = position
        # The restored pass may end before another begins.
        self._epoch = position.epoch

    # Evaluation, and batches outside the training order

    def evaluation_batches(self, number: int) -> tuple[Iterator[Any], Iterable[object]]:
        for part in find_parts_with_epoch(self.loader):
            part.set_epoch(number)
        batches = self._reader.read(number)
        # The batch fetched ahead tells whether there is another one.
        ahead = deque(islice(batches, 1))

        def take() -> Iterator[Any]:
            while ahead:
                batch = ahead.popleft()
                ahead.extend(islice(batches, 1))
                yield batch

        def count() -> Iterator[object]:
            while ahead:
                yield ahead

        return take(), count()

    def first_sample(self) -> Any:
        return next(self._reader.read_again(0, 1, batch_size=1))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        world = self._context.world
        batches = self._reader.read_again(world.rank, world.world_size)
        return islice(batches, self._reader.length if self._context.is_training else None)

    def close(self) -> None:
        if self._batches is not None and self._reader.is_at_end:
            self._end_pass()
        self._batches = None
        self._pass = iter(())
        self._reader.close()
        super().close()


class EndlessPasses(IterableData):
    """Iterable data of which a rank begins the next pass where one ends."""

    def _iterate_from(self, start: PassPosition) -> Iterator[Any]:
        """Yield the rest of a pass and all that follow; raises TaskError if a pass has no batch."""
        has_batch = start.loader is not None
        while True:
            for batch in self._pass:
                has_batch = True
                yield batch
            if not has_batch:
                raise TaskError(
                    f"the train dataset has no batch{self._context.world.place} in pass"
                    f" {self._pass_number + 1}; __iter__ must start over in each pass"
                )
            self._read_pass(self._pass_number + 1)
            has_batch = False


class StoppingPasses(IterableData):
    """Iterable training data with which all ranks end the run where a rank's pass ends before the
    epoch."""

    stops_when_exhausted = True

    def __init__(self, context: PhaseContext, data: Any, build_again: Callable[[], Any]) -> None:
        super().__init__(context, data, build_again)
        self._next_batch = _NO_BATCH
        """The batch that was fetched ahead, if there is one."""
        self._position_ahead: PassPosition | None = None
        """Position before the batch that was fetched ahead of its phase."""

    def _iterate_from(self, start: PassPosition) -> Iterator[Any]:
        if start.random is not None:
            self._fetch_again(start, start.random)
        return self._iterate()

    def _fetch_again(self, position: PassPosition, random: dict[str, Any]) -> None:
        """Fetch the batch that was fetched ahead of the checkpoint, with that time's random state."""
        self._position_ahead = position
        before = random_state()
        restore_random_state(random)
        self._fetch()
        restore_random_state(before)

    def _iterate(self) -> Iterator[Any]:
        """Yield the rest of this pass; `fetch_ahead` may have fetched the next batch."""
        while True:
            self._fetch()
            if self._next_batch is _NO_BATCH:
                return
            self._position_ahead = None
            yield self._take()

    def _take(self) -> Any:
        batch = self._next_batch
        self._next_batch = _NO_BATCH
        return batch

    def _fetch(self) -> None:
        """Fetch the next batch, unless that was done ahead."""
        if self._next_batch is _NO_BATCH:
            self._next_batch = next(self._pass, _NO_BATCH)

    def fetch_ahead(self) -> bool:
        self._fetch()
        is_at_end = self._next_batch is _NO_BATCH
        (is_exhausted,) = self._context.world.maximum([float(is_at_end)])
        self.is_exhausted = bool(is_exhausted)
        return not self.is_exhausted

    def has_more(self) -> bool:
        if self._reader.is_epoch_one_pass:
            return True
        position = self._find_position()
        self._position_ahead = replace(position, random=random_state())
        return self.fetch_ahead()

    def _find_position(self) -> PassPosition:
        if self.is_exhausted:
            return PassPosition(self._epoch, self._pass_number, self._processes, is_exhausted=True)
        return self._position_ahead or super()._find_position()

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        super().restore(state, world_size)
        assert self._restored is not None
        self.is_exhausted = self._restored.is_exhausted
