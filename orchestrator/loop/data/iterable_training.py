"""Training on iterable data in passes, and its position in a checkpoint. Runs in workers."""

from collections.abc import Iterator
from typing import Any

from orchestrator.errors import CheckpointError
from orchestrator.loop.data.iterable_passes import EndlessPasses, Passes, StoppingPasses
from orchestrator.loop.data.iterable_reader import IterableReader
from orchestrator.loop.data.pass_position import PassPosition
from orchestrator.loop.data.phase_data import PhaseContext, TrainingData


class IterableTraining(TrainingData):
    """An iterable dataset or loader that training reads in passes.

    If the length of a pass is known and `epoch_steps` is not set, an epoch is a pass; otherwise
    epochs and passes are independent. `loader.on_exhausted` says what follows if a rank's pass ends
    before the epoch.
    """

    def __init__(self, context: PhaseContext, reader: IterableReader) -> None:
        self._world = context.world
        self._reader = reader
        self.loader_workers = reader.loader_workers
        self.stops_when_exhausted = context.experiment.loader.on_exhausted == "stop"
        self._passes: Passes | None = None
        """The passes since training began or, if an epoch is a pass, since the epoch did."""
        self._restored: PassPosition | None = None
        """Restored position, until training continues there."""

    def length(self, offset: int = 0) -> int:
        return self._reader.length

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """Return the training batches of an epoch; the loader knows its place, whatever `offset`
        is."""
        if self._passes is not None and not self._reader.is_epoch_one_pass:
            return self._passes

        restored = self._restored
        if restored is not None and self._is_within_pass(restored, epoch):
            start = restored
        else:
            self._finish_previous_pass()
            start = PassPosition(epoch, self._choose_next_pass(epoch), self.loader_workers)
        self._restored = None
        self._passes = self._make_passes(start)
        return self._passes

    def _choose_next_pass(self, epoch: int) -> int:
        """Return the number of the pass with which an epoch begins."""
        if self._reader.is_epoch_one_pass:
            return epoch
        return 0 if self._restored is None else self._restored.number + 1

    def _is_within_pass(self, position: PassPosition, epoch: int) -> bool:
        """Return whether an epoch continues the pass of a restored position."""
        if position.is_exhausted:
            return False
        return not self._reader.is_epoch_one_pass or position.epoch == epoch

    def _finish_previous_pass(self) -> None:
        if self._restored is not None:
            self._reader.finish_restored_pass(self._restored)
        else:
            self._reader.finish_pass()

    def _make_passes(self, start: PassPosition) -> Passes:
        kind = StoppingPasses if self.stops_when_exhausted else EndlessPasses
        return kind(self._reader, self._world, start)

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
        return self._restored or PassPosition(0, 0, self.loader_workers)

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        if world_size != self._world.world_size:
            raise CheckpointError(
                f"an iterable dataset continues only on as many ranks as before: {world_size}, "
                f"got {self._world.world_size}; resume with --workers {world_size}"
            )
        if state is None:
            raise CheckpointError(
                "the train data is iterable, but the checkpoint was made with map-style data and has no position in it"
            )
        position = PassPosition.from_data(state)
        self._check_loader_workers(position.loader_workers)
        self._restored = position

    def _check_loader_workers(self, before: int | None) -> None:
        """Raise CheckpointError if the experiment has another number of DataLoader workers."""
        if before is None or self.loader_workers in (None, before):
            return
        raise CheckpointError(
            f"an iterable dataset continues only with as many DataLoader workers as before: set"
            f" loader.num_workers={before}, got {self.loader_workers}"
        )
