"""An iterable dataset or the task's own loader. Runs in workers."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

from hooks.loader_parts import find_parts_with_epoch
from orchestrator.loop.data.iterable_length import IterableLength
from orchestrator.loop.data.iterable_reader import IterableReader
from orchestrator.loop.data.iterable_source import BuildAgain, IterableSource, make_source
from orchestrator.loop.data.iterable_training import IterableTraining
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData, TrainingData


class IterableData(PhaseData):
    """A phase's iterable dataset or loader.

    An evaluation reads it from its beginning; training has its position in an IterableTraining.
    """

    def __init__(
        self, context: PhaseContext, source: IterableSource, length: IterableLength
    ) -> None:
        super().__init__(context)
        self._source = source
        self._reader = IterableReader(context, source, length)
        self.loader = source.loader

    @classmethod
    def build(cls, context: PhaseContext, data: Any, build_again: BuildAgain) -> Self:
        """Build the data of a phase from what the task returns; collective in training.

        Raises ConfigError for wrong data.
        """
        source = make_source(context, data, build_again)
        return cls(context, source, IterableLength.agree(context, source.count_batches()))

    def length(self, offset: int = 0) -> int:
        return self._reader.length

    def as_training_data(self) -> TrainingData:
        return IterableTraining(self._context, self._reader)

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

        def count() -> Iterator[None]:
            while ahead:
                yield None

        return take(), count()

    def first_sample(self) -> Any:
        return next(self._source.read_again(0, 1, batch_size=1))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield this rank's batches once, in the order of the dataset, which nothing else knows."""
        world = self._context.world
        batches = self._source.read_again(world.rank, world.world_size)
        return islice(batches, self._reader.length if self._context.is_training else None)

    def close(self) -> None:
        self._reader.close()
        super().close()
