"""An iterable dataset in training and in evaluations, and its position in a checkpoint. Runs in
workers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from hooks.loader_parts import find_parts_with_epoch
from orchestrator.errors import CheckpointError, TaskError
from orchestrator.loop.data.iterable_reader import IterableReader
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData
from orchestrator.randomness import random_state, restore_random_state


class IterableData(PhaseData):
    """A phase's iterable dataset or loader, and the position in it.

    Training reads it in passes. If the length of a pass is known and `epoch_steps` is not set, an
    epoch is a pass; otherwise epochs and passes are independent. If a rank's pass ends before the
    epoch, the rank begins the next pass, or all ranks end the run there (`loader.on_exhausted`).
    """

    def __init__(self, context: PhaseContext, data: Any, build_again: Callable[[], Any]) -> None:
        super().__init__(context)
        on_exhausted = context.experiment.loader.on_exhausted
        self.stops_when_exhausted = context.is_training and on_exhausted == "stop"
        self._reader = IterableReader(context, data, build_again)
        self.loader = self._reader.loader
        self._epoch = 0
        self._pass_number = 0
        """Number of the current pass, from 0."""
        self._pass: Iterator[Any] = iter(())
        """The rest of this pass."""
        self._batches: Iterator[Any] | None = None
        """The batches for training, across passes; None before training begins."""
        self._restored: dict[str, Any] | None = None
        """Restored position, until training continues there."""
        self._ahead: deque[Any] = deque()
        """The batch that was fetched ahead, if there is one."""
        self._position_ahead: dict[str, Any] | None = None
        """Position and random state before the batch that was fetched ahead of its phase."""

    def length(self, offset: int = 0) -> int:
        return self._reader.length

    # Training

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        if self._batches is not None and not self._reader.is_epoch_one_pass:
            return self._batches
        position = self._find_start(epoch)
        loader_state = position["loader"]
        self._epoch = epoch
        self._read_pass(position["pass"], loader_state)
        if not self.stops_when_exhausted:
            self._batches = self._iterate_passes(has_batch=loader_state is not None)
            return self._batches

        if "random" in position:
            self._fetch_ahead_again(position)
        self._batches = self._iterate_ahead()
        return self._batches

    def _find_start(self, epoch: int) -> dict[str, Any]:
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

        number = 0 if restored is None else restored["pass"] + 1
        return {"pass": epoch if self._reader.is_epoch_one_pass else number, "loader": None}

    def _is_within_pass(self, position: Mapping[str, Any], epoch: int) -> bool:
        """Return whether an epoch continues the pass of a restored position."""
        if position["is_exhausted"]:
            return False
        return not self._reader.is_epoch_one_pass or position["epoch"] == epoch

    def _end_restored_pass(self, position: Mapping[str, Any]) -> None:
        """End the pass of a restored position, because the task's own loader may derive the order of
        the next pass from it."""
        if self._reader.share is None and position["loader"] is not None:
            self._read_pass(position["pass"], position["loader"])
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

    def _iterate_passes(self, has_batch: bool) -> Iterator[Any]:
        """Yield the rest of a pass and all that follow; raises TaskError if a pass has no batch."""
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

    def fetch_ahead(self) -> bool:
        if not self.stops_when_exhausted:
            # Another pass follows, which `_iterate_passes` begins.
            return True
        if not self._ahead:
            self._ahead.extend(islice(self._pass, 1))
        (is_exhausted,) = self._context.world.maximum([float(not self._ahead)])
        self.is_exhausted = bool(is_exhausted)
        return not self.is_exhausted

    def has_more(self) -> bool:
        if not self.stops_when_exhausted or self._reader.is_epoch_one_pass:
            return True
        self._position_ahead = self._make_position(self.loader.state_dict())
        self._position_ahead["random"] = random_state()
        return self.fetch_ahead()

    def _fetch_ahead_again(self, state: dict[str, Any]) -> None:
        """Fetch again the batch that was fetched ahead of the checkpoint.

        This uses the random state of that time.
        """
        self._position_ahead = state
        before = random_state()
        restore_random_state(state["random"])
        self._ahead.extend(islice(self._pass, 1))
        restore_random_state(before)

    def _iterate_ahead(self) -> Iterator[Any]:
        """Yield the batches that `fetch_ahead` fetches, one before each `next`."""
        while True:
            self._position_ahead = None
            yield self._ahead.popleft()

    # Position

    def state_dict(self) -> dict[str, Any] | None:
        if self._batches is None:
            return self._restored or self._make_position(None)
        if self.is_exhausted:
            return self._make_position(None)
        return self._position_ahead or self._make_position(self.loader.state_dict())

    def _make_position(self, loader_state: Any) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "pass": self._pass_number,
            "processes": self._context.experiment.loader.num_workers,
            "loader": loader_state,
            "is_exhausted": self.is_exhausted,
        }

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
        processes = self._context.experiment.loader.num_workers
        if state["loader"] is not None and state["processes"] != processes:
            raise CheckpointError(
                f"an iterable dataset continues only with as many DataLoader workers as before: set"
                f" loader.num_workers={state['processes']}, got {processes}"
            )
        self._restored = state
        self._epoch = state["epoch"]
        self._pass_number = state["pass"]
        self.is_exhausted = self.stops_when_exhausted and state["is_exhausted"]

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
