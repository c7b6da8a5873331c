"""The passes of a rank over an iterable phase. Runs in workers."""

from collections.abc import Generator, Iterator
from typing import Any

from orchestrator.errors import RunError
from orchestrator.loop.data.batch_loading import is_of_samples
from orchestrator.loop.data.iterable_length import BatchCounter, IterableLength
from orchestrator.loop.data.iterable_source import IterableSource
from orchestrator.loop.data.pass_position import PassPosition
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.randomness import random_state, restore_random_state

_END: Any = object()


class IterableReader:
    """Reader of an iterable phase, one pass at a time: from the beginning or a saved position."""

    def __init__(
        self, context: PhaseContext, source: IterableSource, length: IterableLength
    ) -> None:
        self._context = context
        self._source = source
        self._own_length = length.own
        self.is_epoch_one_pass = length.is_epoch_one_pass
        self.length = length.epoch
        """Batches of this rank in an epoch; 0 if unknown. An evaluation corrects a wrong one."""
        self._counter = BatchCounter(
            context.phase,
            context.world.place,
            length.own,
            is_training=context.is_training,
            is_epoch_one_pass=length.is_epoch_one_pass,
        )
        self._pass: Generator[Any, None, None] | None = None
        """The rest of the current pass."""

    @property
    def loader_workers(self) -> int | None:
        """DataLoader workers that the experiment gives the loader; None for the task's own."""
        return self._source.loader_workers

    @property
    def batches(self) -> int:
        """Number of batches of the current pass that have been read."""
        return self._counter.count

    def loader_state(self) -> Any:
        """Return the position of the loader."""
        return self._source.loader.state_dict()

    def read(self, number: int) -> Iterator[Any]:
        """Return the batches of a pass.

        They raise RunError if the dataset fails, and torch's own error if the loader does: a
        process died, or took longer than the loader's timeout.
        """
        self._begin(number, 0)
        self._pass = self._iterate(iter(self._source.loader))
        return self._pass

    def read_from(self, position: PassPosition) -> Iterator[Any]:
        """Return the batches of a pass from a position on.

        Skipping to it does not change the training's random state.
        """
        if position.loader is None:
            return self.read(position.number)
        self._begin(position.number, position.batches)
        before = random_state()
        self._source.loader.load_state_dict(position.loader)
        batches = iter(self._source.loader)
        restore_random_state(before)
        self._pass = self._iterate(batches)
        return self._pass

    def _begin(self, number: int, batches: int) -> None:
        """Begin a pass, of which some batches have been read."""
        self._source.begin_pass(number)
        self._context.seed_generator(number)
        self._counter.begin(batches)

    def _iterate(self, batches: Iterator[Any]) -> Generator[Any, None, None]:
        while True:
            batch = self._read_next(batches)
            if batch is _END:
                self._counter.end()
                if not self._context.is_training and self._own_length is not None:
                    self.length = self._counter.count
                return
            self._counter.add()
            yield batch

    def _read_next(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, or `_END`; raises RunError if the dataset fails."""
        try:
            return next(batches, _END)
        except Exception as error:
            has_processes = getattr(self._source.loader, "num_workers", 0) > 0
            if not is_of_samples(error, has_processes=has_processes):
                raise
            context = self._context
            raise RunError(
                f"the {context.phase} dataset fails{context.world.place}: {type(error).__name__}: {error}"
            ) from error

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
        """Finish the pass of a restored position if the next pass may depend on it."""
        if self._source.needs_whole_passes and position.loader is not None:
            self.read_from(position)
            self.finish_pass()

    def close(self) -> None:
        """Finish the last pass, and release the loader with its processes."""
        self.finish_pass()
        if self._pass is not None:
            self._pass.close()
        self._source.loader = None
