"""Snapshots of memory."""

import gc
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Cleanup, Priority
from hooks.private_torch import dump_memory_snapshot, record_memory_history
from hooks.state import State

FOLDER = "memory"
LINES = 200
"""Maximum number of kinds of tensors in a text."""


@dataclass
class MemorySnapshot(Cleanup):
    """Write down what the memory holds, after chosen steps and when the run fails.

        memory_snapshot: {steps: [10, 1000]}

    Each rank writes files under `memory/`, such as `rank=0-step=12.txt`; at a failure the name ends
    with the error's. They list the process's resident memory, the live tensors by type, shape and
    device, and torch's summary of GPU memory. Python does not see tensors that only autograd keeps.
    On CUDA the hook also records the history of allocations and writes `.pickle`, torch's snapshot
    for https://docs.pytorch.org/memory_viz. Source: Composer MemorySnapshot, VISSL
    DumpMemoryOnException.
    """

    steps: tuple[Annotated[int, Ge(1)], ...] = ()
    """Optimizer steps after which a snapshot is written."""
    max_entries: Annotated[int, Ge(1)] = 100_000
    """Maximum number of allocations in the GPU's history, which limits the size of a snapshot."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    best_effort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._records_history = False

    def on_start(self, state: State) -> None:
        if state.device.type == "cuda":
            record_memory_history(max_entries=self.max_entries, stacks="python")
            self._records_history = True

    def on_step(self, state: State) -> None:
        if state.stepped and state.step in self.steps:
            self._write(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        try:
            self._write(state, f"-{type(error.__cause__ or error).__name__}")
        finally:
            self.close()

    def _write(self, state: State, reason: str = "") -> None:
        folder = state.artifacts / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rank={state.rank}-step={state.step}{reason}"
        # Reading proxies and tensors without memory warns.
        with warnings.catch_warnings(action="ignore"):
            text = "\n".join(_describe_memory(state.device)) + "\n"
        (folder / f"{name}.txt").write_text(text)
        if self._records_history:
            dump_memory_snapshot(folder / f"{name}.pickle")

    def close(self) -> None:
        if self._records_history:
            self._records_history = False
            record_memory_history(enabled=None)


def _describe_memory(device: torch.device) -> Iterator[str]:
    import psutil

    yield f"resident memory of the process: {psutil.Process().memory_info().rss:,} bytes"
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in _find_live_tensors():
        dtype = str(tensor.dtype).removeprefix("torch.")
        kind = f"{type(tensor).__name__} {dtype} {[*tensor.shape]} {tensor.device}"
        counts[kind] += 1
        sizes[kind] += tensor.nbytes
    yield f"live tensors that Python sees: {counts.total()}; views of one storage count separately"
    yield ""
    yield f"{'bytes':>16} {'count':>8}  type, dtype, shape, device"
    for kind, size in sizes.most_common(LINES):
        yield f"{size:>16,} {counts[kind]:>8}  {kind}"
    if len(sizes) > LINES:
        yield f"... and {len(sizes) - LINES} smaller kinds"
    if device.type == "cuda":
        yield torch.cuda.memory_summary(device)


def _find_live_tensors() -> Iterator[Tensor]:
    """Yield the tensors that own memory."""
    for value in gc.get_objects():
        # Not isinstance, which runs code of proxies.
        if not issubclass(type(value), Tensor):
            continue
        # The compiler's fake tensors and sparse ones have no storage.
        with suppress(RuntimeError, NotImplementedError):
            if value.untyped_storage().data_ptr() != 0:
                yield value
