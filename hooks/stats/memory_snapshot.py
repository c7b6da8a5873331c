"""What is in memory: at a step, or when a run fails."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from weakref import ref

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority
from hooks.parts.cleanup import Cleanup
from hooks.private_torch import dump_memory_snapshot, record_memory_history, when_out_of_memory
from hooks.state import State

FOLDER = "memory"
LINES = 200
"""How many kinds of tensors, and how many source lines, a text lists at most."""


@dataclass
class MemorySnapshot(Cleanup, Hook):
    """Writes down what is in memory: after the steps that were asked for, and when the run fails.

    Every rank writes files of its own under `memory/`, named as in `rank=0-step=12`, followed by the error that led to
    it. `.txt` has the process's resident memory, the live tensors by type, shape and device with their number and
    bytes, torch's summary of the GPU's memory, and the source lines that allocated most where `tracemalloc` is tracing.
    Python sees no tensors that autograd alone keeps. On CUDA the history of allocations is recorded while the run
    lasts, and `.pickle` is torch's snapshot, for https://docs.pytorch.org/memory_viz; out of memory it is taken before
    anything is freed. A failure to write is logged and never hides the run's own. Source: Composer MemorySnapshot and
    OOMObserver, VISSL DumpMemoryOnException.
    """

    steps: tuple[Annotated[int, Ge(1)], ...] = ()
    """Optimizer steps after which to write."""
    failures: Literal["any", "out_of_memory", "none"] = "any"
    """Which failures to write at."""
    max_entries: Annotated[int, Ge(1)] = 100_000
    """Allocations that the GPU's history keeps, which bounds the size of a snapshot."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    best_effort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._recording = False
        self._state: State | None = None
        """While the history is recorded."""
        self._ran_out = False

    def on_start(self, state: State) -> None:
        if state.device.type != "cuda":
            return
        record_memory_history(max_entries=self.max_entries, stacks="python")
        self._recording, self._state = True, state
        if self.failures != "none":
            when_out_of_memory(partial(_run_out, ref(self)))

    def on_step(self, state: State) -> None:
        if state.stepped and state.step in self.steps:
            self._write(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        try:
            lack = _out_of_memory(error)
            if self.failures == "any" or (self.failures == "out_of_memory" and lack is not None):
                self._write(state, f"-{type(lack or error.__cause__ or error).__name__}")
        finally:
            self.close()

    def _write(self, state: State, reason: str = "") -> None:
        with warnings.catch_warnings(action="ignore"):  # torch warns of tensors that have no address, and so do proxies
            _path(state, reason, "txt").write_text("\n".join(_lines(state.device)) + "\n")
        snapshot = _path(state, reason, "pickle")
        if self._recording and not snapshot.exists():
            dump_memory_snapshot(snapshot)

    def _run_out(self) -> None:
        # Once: a program that lives on with too little memory may come here again and again.
        if self._state is not None and not self._ran_out:
            self._ran_out = True
            dump_memory_snapshot(_path(self._state, "-OutOfMemoryError", "pickle"))

    def close(self) -> None:
        self._state = None
        if self._recording:
            self._recording = False
            record_memory_history(enabled=None)


def _run_out(hook: ref[MemorySnapshot]) -> None:
    """By a reference that keeps nothing: torch has an observer for as long as the process lives."""
    alive = hook()
    if alive is not None:
        alive._run_out()


def _path(state: State, reason: str, suffix: str) -> Path:
    folder = state.artifacts / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank={state.rank}-step={state.step}{reason}.{suffix}"


def _out_of_memory(error: BaseException | None) -> BaseException | None:
    """The lack of memory that led to a failure, if one did."""
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
    """Tensors that have memory, with the address of their storage."""
    for thing in gc.get_objects():
        # By its type: isinstance asks proxies for their class, which may do anything.
        if issubclass(type(thing), Tensor) and (address := _address(thing)):
            yield thing, address


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # the compiler's fake tensors, and sparse ones
        return 0
