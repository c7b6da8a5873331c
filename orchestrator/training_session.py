"""The argument of `Task.train(session)`, for a task with a custom loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from hooks.state import State


class Stateful(Protocol):
    """Object that a checkpoint can hold: a module, an optimizer, a loader with a position."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Part = Stateful | MutableMapping[str, Any]


class SessionTraining(Protocol):
    """The training behind a session."""

    @property
    def state(self) -> State: ...

    def restore_parts(self, parts: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool: ...

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None: ...

    def save_here(self) -> None: ...

    def should_stop(self) -> bool: ...


class TrainingSession:
    """Rows, reports and checkpoints for a task with a custom loop; each worker has a session.

    The task yields reports: mappings of metrics whose names begin with `train/`, `val/` or `test/`.
    All ranks yield at the same points, and the run reports the means across ranks. A report ends an
    epoch. The run ends after `epochs` reports, or at the first report after `steps` rows.

    With several ranks, torch's process group is initialized. All generators start from the
    experiment's `seed`, so that all ranks build the same model. `restore` then seeds each rank but
    0 with `seed` plus its rank; rank 0 continues with its generators, as a loop in one process
    does. Without `restore`, all ranks sample the same numbers.

    Attributes:
        rank: Number of this process among all ranks.
        world_size: Number of ranks.
        local_rank: Number of this process among those of its node.
        device: The device on which this rank trains.
        config: The resolved experiment, as in experiment.yaml.
        artifacts: A local folder, whose files are copied to the run's folder.
    """

    def __init__(self, training: SessionTraining) -> None:
        state = training.state
        self.rank = state.rank
        self.world_size = state.world_size
        self.local_rank = state.local_rank
        self.device = state.device
        self.config = state.config
        self.artifacts = state.artifacts
        self._training = training
        self._call: _Call | None = None

    @property
    def epoch(self) -> int:
        """Number of reports since the start of the run, including those before a restored
        checkpoint."""
        return self._training.state.epoch

    @property
    def step(self) -> int:
        """Number of rows since the start of the run, including those before a restored
        checkpoint."""
        return self._training.state.step

    @property
    def stop_requested(self) -> bool:
        """True once training must end: because of Ctrl-C, a hook or the sweep, or after all
        `steps`.

        All ranks get the same value, so all must read it at the same points. Steps after the last
        `yield` get a report and a checkpoint, except after an interruption: a resume then continues
        from the last checkpoint, such as one that `save` has just written."""
        return self._training.should_stop()

    def restore(self, *, per_rank: Mapping[str, Part] | None = None, **parts: Part) -> bool:
        """Name the parts of checkpoints, and restore them if this run continues from a checkpoint.

        Call it once, after building everything, right before training. The random state is saved
        with the parts. `save` writes checkpoints, and so does a `yield` if the hook `checkpoint` or
        the sweep requests one.

        Args:
            per_rank: Parts that differ between ranks, by name.
            **parts: Parts that are equal on all ranks. A part has `state_dict` and
                `load_state_dict`, or is a dict, whose entries are replaced.

        Returns:
            Whether the run continues from a checkpoint.

        Example:
            ```python
            is_continued = session.restore(model=model, optimizer=optimizer, counters=counters)
            ```
        """
        return self._training.restore_parts(parts, per_rank or {})

    def record(self, *, batch_size: int = 1, **columns: Any) -> None:
        """Add a row to this rank's table, which counts as an iteration and a step.

        An epoch in which it is never called has one row. The time of the first row begins where
        `restore` has returned, and without `restore` where `train` began.

        Args:
            batch_size: Samples of the row.
            **columns: Numbers, short texts, or tensors of one element, which stay on their device
                until rows are written.
        """
        self._training.record(columns, batch_size)

    def save(self) -> None:
        """Write a checkpoint now, in the middle of an epoch. Every rank must call it."""
        self._training.save_here()

    def run_in_thread(self, call: Callable[[], Any]) -> Generator[Mapping[str, Any], None, None]:
        """Run a call in a separate thread, for trainers that own the loop and offer callbacks.

        If training ends before the call does, `report` raises an error that `except Exception` does
        not catch.

        Args:
            call: The call, whose callbacks pass metrics to `report`.

        Yields:
            The metrics of each report.
        """
        self._call = _Call(call, self.device)
        try:
            yield from self._call.reports()
        finally:
            self._call = None

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report from a callback within `run_in_thread`, instead of a `yield`. Returns once training
        may continue.

        Args:
            metrics: The metrics, with names that begin with `train/`, `val/` or `test/`.
        """
        if self._call is None or self._call.reader is current_thread():
            raise RuntimeError(
                "session.report() is for callbacks within session.run_in_thread(call); "
                "elsewhere write `yield metrics`"
            )
        self._call.report(metrics)


_NO_MORE_REPORTS: Any = object()
"""End of the reports of a call."""


class _Ended(BaseException):
    """Signal that training has ended before the call."""


class _Call:
    """Call in a separate thread, which waits while the loop handles a report."""

    def __init__(self, call: Callable[[], Any], device: torch.device) -> None:
        self._call = call
        self._device = device
        self._reports: SimpleQueue[Any] = SimpleQueue()
        self._taken: SimpleQueue[None] = SimpleQueue()
        self._has_ended = False
        self._error: BaseException | None = None
        self.reader: Thread | None = None
        """Thread that reads the reports, for which a report of its own would wait for ever."""
        # A daemon, so that a process can end whose loop has failed between two reports.
        self._thread = Thread(target=self._run, name="train", daemon=True)

    def reports(self) -> Generator[Mapping[str, Any], None, None]:
        self._thread.start()
        try:
            while (metrics := self._receive()) is not _NO_MORE_REPORTS:
                yield metrics
                self._taken.put(None)
        finally:
            self._has_ended = True
            self._taken.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _receive(self) -> Any:
        self.reader = current_thread()
        return self._reports.get()

    def report(self, metrics: Mapping[str, Any]) -> None:
        if not self._has_ended:
            self._reports.put(metrics)
            self._taken.get()
        if self._has_ended:
            raise _Ended

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                import torch

                # Each thread has a current device of its own.
                torch.cuda.set_device(self._device)
            self._call()
        except _Ended:
            pass
        # `reports` raises it.
        except BaseException as error:
            self._error = error
        finally:
            self._reports.put(_NO_MORE_REPORTS)
