"""Snapshots of memory."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from weakref import WeakMethod

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority
from hooks.parts.cleanup import Cleanup
from hooks.private_torch import dump_memory_snapshot, record_memory_history, when_out_of_memory
from hooks.state import State

FOLDER = "memory"
LINES = 200
"""Most kinds of tensors and source lines in a text."""


@dataclass
class MemorySnapshot(Cleanup, Hook):
    """Description of the memory's contents, after chosen steps and when the run fails.

        memory_snapshot: {steps: [10, 1000]}

    Each rank writes files under `memory/`, such as `rank=0-step=12.txt`, at a failure with the error's name. They have
    the process's resident memory, the live tensors by type, shape and device, torch's summary of GPU memory, and, if
    `tracemalloc` is tracing, the source lines that allocated most. Python does not see tensors that only autograd
    keeps. On CUDA the hook records the history of allocations, and `.pickle` is torch's snapshot for
    https://docs.pytorch.org/memory_viz; out of memory, it is taken before anything is freed. Source: Composer
    MemorySnapshot and OOMObserver, VISSL DumpMemoryOnException.
    """

    steps: tuple[Annotated[int, Ge(1)], ...] = ()
    """Optimizer steps after which to write."""
    failures: Literal["any", "out_of_memory", "none"] = "any"
    """Failures at which to write."""
    max_entries: Annotated[int, Ge(1)] = 100_000
    """Allocations in the GPU's history, which limits the size of a snapshot."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    best_effort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._recording = False
        self._state: State | None = None
        """Set while the history is recorded."""
        self._ran_out = False

    def on_start(self, state: State) -> None:
        if state.device.type != "cuda":
            return
        record_memory_history(max_entries=self.max_entries, stacks="python")
        self._recording, self._state = True, state
        if self.failures != "none":
            # Torch keeps an observer as long as the process lives, so it must not keep the hook alive.
            weak = WeakMethod(self._run_out)
            when_out_of_memory(lambda: (run_out := weak()) and run_out())

    def on_step(self, state: State) -> None:
        if state.stepped and state.step in self.steps:
            self._write(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        try:
            memory_error = _out_of_memory(error)
            if self.failures == "any" or (self.failures == "out_of_memory" and memory_error is not None):
                self._write(state, f"-{type(memory_error or error.__cause__ or error).__name__}")
        finally:
            self.close()

    def _write(self, state: State, reason: str = "") -> None:
        with warnings.catch_warnings(action="ignore"):  # reading proxies and tensors without memory warns
            _path(state, reason, "txt").write_text("\n".join(_lines(state.device)) + "\n")
        snapshot = _path(state, reason, "pickle")
        if self._recording and not snapshot.exists():
            dump_memory_snapshot(snapshot)

    def _run_out(self) -> None:
        # Only once, as a program may survive and run out of memory again and again.
        if self._state is not None and not self._ran_out:
            self._ran_out = True
            dump_memory_snapshot(_path(self._state, "-OutOfMemoryError", "pickle"))

    def close(self) -> None:
        self._state = None
        if self._recording:
            self._recording = False
            record_memory_history(enabled=None)


def _path(state: State, reason: str, suffix: str) -> Path:
    folder = state.artifacts / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank={state.rank}-step={state.step}{reason}.{suffix}"


def _out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error that led to a failure, if any."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return error
        error = error.__cause__ or error.__context__
    return None


def _lines(device: torch.device) -> Iterator[str]:
    import psutil

    yield f"resident memory of the process: {psutil.Process().memory_info().rss:,} bytes"
    yield from _tensor_lines()
    if device.type == "cuda":
        yield torch.cuda.memory_summary(device)
    if tracemalloc.is_tracing():
        yield from ("", "bytes allocated by source line:")
        yield from (str(line) for line in tracemalloc.take_snapshot().statistics("lineno")[:LINES])


def _tensor_lines() -> Iterator[str]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    storages: dict[tuple[str, int], int] = {}
    for tensor, address in _live_tensors():
        kind = (
            f"{type(tensor).__name__} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {tensor.device}"
        )
        counts[kind] += 1
        sizes[kind] += tensor.nbytes
        storages[str(tensor.device), address] = tensor.untyped_storage().nbytes()
    yield f"live tensors that Python sees: {counts.total()}, on {sum(storages.values()):,} bytes of storage"
    yield ""
    yield f"{'bytes':>16} {'count':>8}  type, dtype, shape, device"
    for kind, size in sizes.most_common(LINES):
        yield f"{size:>16,} {counts[kind]:>8}  {kind}"
    if len(sizes) > LINES:
        yield f"... and {len(sizes) - LINES} kinds that are smaller"


def _live_tensors() -> Iterator[tuple[Tensor, int]]:
    """Yield tensors that have memory, with the address of their storage."""
    for value in gc.get_objects():
        # By its type, as isinstance runs code of proxies.
        if issubclass(type(value), Tensor) and (address := _address(value)):
            yield value, address


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # the compiler's fake tensors, and sparse ones
        return 0
