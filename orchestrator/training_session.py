"""The session: what a task that trains by itself is given, in `Task.train(session)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, MutableMapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Stateful(Protocol):
    """What can be put into a checkpoint and taken out of it again: a module, an optimizer, a loader that keeps its
    place."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Part = Stateful | MutableMapping[str, Any]


class TrainingSession(ABC):
    """What a task that trains by itself records, reports and keeps. In each worker process.

    A report is yielded: a mapping of metrics, whose names begin with `train/`, `val/` or `test/`, on every rank at the
    same places; the run's are the means over ranks. It ends a round, which is called an epoch. torch's process group is
    there where there are several ranks. All generators are seeded with the experiment's `seed`, alike on each rank, so
    that models are built alike. `restore` gives each rank its own: `seed` plus its number.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        device: torch.device,
        config: Mapping[str, Any],
        artifacts: Path,
    ) -> None:
        self.rank, self.world_size, self.local_rank, self.device = rank, world_size, local_rank, device
        self.config = config
        """The experiment in full, as experiment.yaml has it."""
        self.artifacts = artifacts
        """A local folder; what is written here ends up in the run's folder."""
        self._call: _Call | None = None

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Reports yielded since the run began; of what `restore` has put back, those until then."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Rows recorded since the run began, counted in the same way."""

    @property
    @abstractmethod
    def stop_asked(self) -> bool:
        """Whether training is to end: Ctrl-C, a hook, the sweep, or all `steps` are made. All ranks hear it at the same
        place, so that all ask alike. Steps after the last `yield` get a report and a checkpoint, but after an
        interruption: there a resume goes on from the last checkpoint, which `save` may have made right before."""

    @abstractmethod
    def restore(self, *, per_rank: Mapping[str, Part] | None = None, **parts: Part) -> bool:
        """Says what a checkpoint holds, and puts back what the one holds that this run goes on from; whether there is
        one is returned.

        `parts` are alike on all ranks, `per_rank` each rank's own: what has `state_dict` and `load_state_dict`, or a
        dict, whose entries are replaced. The states of all random generators go with them. Call it once, when all is
        built, right before training. A checkpoint is made at a `yield`, where the hook `checkpoint` or the sweep asks
        for one, and by `save`."""

    @abstractmethod
    def record(self, *, batch_size: int = 1, **columns: Any) -> None:
        """Adds a row to this rank's table, which counts as an iteration and a step: numbers, short texts, or tensors of
        one element, which stay on their device until rows are written. A round in which nothing was recorded has one
        row."""

    @abstractmethod
    def save(self) -> None:
        """Writes a checkpoint here, in the middle of a round; collective. Where training goes on from it, `restore` has
        put back all there is."""

    def reports_of(self, call: Callable[[], Any]) -> Generator[Mapping[str, Any], None, None]:
        """For a loop that tells by callbacks: makes a call in a thread of its own, and yields what `report` is given
        there. Where training ends before the call does, `report` raises what no `except Exception` holds up."""
        self._call = _Call(call, self.device)
        try:
            yield from self._call.reports()
        finally:
            self._call = None

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Within a call that `reports_of` makes: what a `yield` is elsewhere. Returns once training goes on."""
        if self._call is None:
            raise RuntimeError(
                "session.report() is for callbacks within session.reports_of(call); elsewhere write `yield metrics`"
            )
        self._call.report(metrics)


class _Left(BaseException):
    """Nobody takes a call's reports any more."""


class _Call:
    """A call in a thread of its own, which stands still while a report of it is looked at."""

    def __init__(self, call: Callable[[], Any], device: torch.device) -> None:
        self._call, self._device = call, device
        self._reports: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._taken: SimpleQueue[None] = SimpleQueue()
        self._is_left = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="train", daemon=True)

    def reports(self) -> Generator[Mapping[str, Any], None, None]:
        self._thread.start()
        try:
            while (metrics := self._reports.get()) is not None:
                yield metrics
                self._taken.put(None)
        finally:
            self._is_left = True
            self._taken.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def report(self, metrics: Mapping[str, Any]) -> None:
        if not self._is_left:
            self._reports.put(metrics)
            self._taken.get()
        if self._is_left:
            raise _Left

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                import torch

                torch.cuda.set_device(self._device)  # each thread has its own
            self._call()
        except _Left:
            pass
        except BaseException as error:  # raised again where reports are taken
            self._error = error
        finally:
            self._reports.put(None)
