"""Iterable training data, and its position in a checkpoint. Runs in workers."""

from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.errors import CheckpointError
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.data.iterable_passes import (
    EndlessPasses,
    Passes,
    PassPosition,
    StoppingPasses,
)
from orchestrator.loop.data.phase_data import PhaseContext, TrainingData


class IterableTraining(IterableData, TrainingData):
    """An iterable dataset or loader that training reads in passes.

    If the length of a pass is known and `epoch_steps` is not set, an epoch is a pass; otherwise
    epochs and passes are independent. `loader.on_exhausted` says what follows if a rank's pass ends
    before the epoch.
    """

    def __init__(self, context: PhaseContext, data: Any, build_again: Callable[[], Any]) -> None:
        super().__init__(context, data, build_again)
        self.stops_when_exhausted = context.experiment.loader.on_exhausted == "stop"
        self._passes: Passes | None = None
        """The passes since training began or, if an epoch is a pass, since the epoch did."""
        self._restored: PassPosition | None = None
        """Restored position, until training continues there."""

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """Return the training batches of an epoch; the loader knows its place, whatever `offset`
        is."""
        if self._passes is None or self._reader.is_epoch_one_pass:
            self._passes = self._make_passes(self._find_start(epoch))
        return self._passes

    def _make_passes(self, start: PassPosition) -> Passes:
        kind = StoppingPasses if self.stops_when_exhausted else EndlessPasses
        return kind(self._reader, self._context.world, start)

    def _find_start(self, epoch: int) -> PassPosition:
        """Return the position at which an epoch begins: the restored one, or that of a new pass,
        for which the last one is ended."""
        restored = self._restored
        self._restored = None
        if restored is not None and self._is_within_pass(restored, epoch):
            return restored
        if self._passes is not None:
            self._passes.end()
        elif restored is not None:
            self._end_restored_pass(restored)

        number = 0 if restored is None else restored.number + 1
        if self._reader.is_epoch_one_pass:
            number = epoch
        return PassPosition(epoch, number, self._loader_workers)

    def _is_within_pass(self, position: PassPosition, epoch: int) -> bool:
        """Return whether an epoch continues the pass of a restored position."""
        if position.is_exhausted:
            return False
        return not self._reader.is_epoch_one_pass or position.epoch == epoch

    def _end_restored_pass(self, position: PassPosition) -> None:
        """End the pass of a restored position, because the task's own loader may derive the order of
        the next pass from it."""
        if self._reader.share is None and position.loader is not None:
            self._make_passes(position).end()

    @property
    def _loader_workers(self) -> int:
        return self._context.experiment.loader.num_workers

    def fetch_ahead(self) -> bool:
        assert self._passes is not None
        return self._passes.fetch_ahead()

    def has_more(self) -> bool:
        assert self._passes is not None
        return self._passes.has_more()

    @property
    def is_exhausted(self) -> bool:
        if self._passes is not None:
            return self._passes.is_exhausted
        return (
            self.stops_when_exhausted and self._restored is not None and self._restored.is_exhausted
        )

    # Position

    def state_dict(self) -> dict[str, Any] | None:
        return self._find_position().as_data()

    def _find_position(self) -> PassPosition:
        if self._passes is not None:
            return self._passes.find_position()
        return self._restored or PassPosition(0, 0, self._loader_workers)

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
        if position.loader is not None and position.loader_workers != self._loader_workers:
            raise CheckpointError(
                f"an iterable dataset continues only with as many DataLoader workers as before: set"
                f" loader.num_workers={position.loader_workers}, got {self._loader_workers}"
            )
        self._restored = position

    def close(self) -> None:
        if self._passes is not None and self._reader.is_at_end:
            self._passes.end()
        self._passes = None
        super().close()
