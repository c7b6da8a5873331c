"""Traces of a few iterations by torch's profiler."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hooks.hook import Hook, Priority, Setup
from hooks.parts.cleanup import Cleanup
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State

FOLDER = "traces"
ROWS = 100
"""How many operations the table has, at most."""
_ACTIVITIES = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}


@dataclass
class Profiler(Cleanup, Hook):
    """Traces a few training iterations with torch's profiler: what the CPU and the GPU did, and how long it took.

    Iterations are those of training, counted from the run's first: after `skip_first`, each window is `wait`, then
    `warmup` under the profiler without keeping anything, then `active` that are kept. A resumed run goes on in the same
    schedule. Outside the windows there is no profiler. Each rank that is traced writes files of its own under
    `traces/`, named after their end: `rank=0-step=13-iteration=13.pt.trace.json.gz` for Perfetto, chrome://tracing or
    TensorBoard, and a table of the operations by time, `....txt`. The parts of an iteration are marked as `data`,
    `forward`, `loss`, `backward` and `optimizer`. A validation or a checkpoint that falls into a window is in the
    trace, too; a run that fails or ends in a window leaves the trace up to there. Source: MMEngine ProfilerHook, VISSL
    ProfilingHook, iMIX AutogradProfilerHook.
    """

    skip_first: Annotated[int, Ge(0)] = 10
    """Iterations before the first window."""
    wait: Annotated[int, Ge(0)] = 0
    """Iterations at the beginning of each window without the profiler."""
    warmup: Annotated[int, Ge(0)] = 1
    """Iterations under the profiler that are not kept: the first ones are slow by its own doing."""
    active: Annotated[int, Ge(1)] = 3
    """Iterations that are kept."""
    repeat: Annotated[int, Ge(0)] = 1
    """How many windows; 0 is without end."""
    profiled_ranks: tuple[int, ...] = (0,)
    """The ranks that are traced."""
    activities: tuple[Literal["cpu", "cuda"], ...] | None = None
    """What is traced; by default the CPU, and the GPU where the run has one."""
    record_shapes: bool = False
    """Whether to keep the shapes of the operations' inputs."""
    profile_memory: bool = False
    """Whether to keep what each operation allocates and frees."""
    with_stack: bool = False
    """Whether to keep the source line of each operation, which is slow."""
    with_flops: bool = False
    """Whether to estimate the FLOPs of matrix products and convolutions."""
    nvtx: bool = False
    """Whether to mark the parts of every iteration, in windows or not, as NVTX ranges for Nsight Systems; on a GPU."""
    stop_after: bool = False
    """Whether to end the run after the last window."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST

    def __post_init__(self) -> None:
        if self.repeat == 0:
            refuse_unread(self, "a last window, and repeat: 0 is without end", "stop_after")
        self._profile: profile | None = None
        self._part = ExitStack()
        self._begin, self._end = inf, inf

    def unsuitable(self, setup: Setup) -> str:
        for name, hook in setup.hooks.items():
            if isinstance(hook, Profiler) and hook is not self and {*hook.profiled_ranks} & {*self.profiled_ranks}:
                return (
                    f"torch has one profiler in a process, and '{name}' traces the same ranks; trace others"
                    " (profiled_ranks), or more windows (repeat)"
                )
        return ""

    def on_start(self, state: State) -> None:
        if self.nvtx and state.device.type != "cuda":
            raise ValueError(f"nvtx marks ranges for Nsight, which needs a GPU; this run is on {state.device}")
        if state.rank in self.profiled_ranks:
            self._begin, self._end = self._next_window(state.iteration)

    def on_iteration_start(self, state: State) -> None:
        if state.iteration >= self._begin and self._profile is None and state.phase == "train":
            self._start(state)
        self._mark("data")

    def on_batch(self, state: State) -> None:
        self._mark("forward")

    def on_forward(self, state: State) -> None:
        self._mark("loss")

    def on_loss(self, state: State) -> None:
        self._mark("backward" if state.phase == "train" else "")

    def on_backward(self, state: State) -> None:
        self._mark("")

    def on_gradients(self, state: State) -> None:
        self._mark("optimizer")

    def on_step(self, state: State) -> None:
        self._mark("")
        if self._profile is None or state.phase != "train":
            return
        if state.iteration < self._end:
            self._profile.step()
            return
        self.close()
        self._begin, self._end = self._next_window(state.iteration)
        if self.stop_after and self._begin == inf:
            state.request_stop(f"the hook '{self.name}' has its traces")

    def _next_window(self, iteration: int) -> tuple[float, float]:
        """Where the profiler starts and stops next; in the middle of a window it has what is left of it."""
        cycle = self.wait + self.warmup + self.active
        window = max(0, (iteration - self.skip_first) // cycle)
        end = self.skip_first + (window + 1) * cycle
        if end - iteration <= self.warmup:
            window, end = window + 1, end + cycle
        if self.repeat and window >= self.repeat:
            return inf, inf
        return max(iteration, end - self.active - self.warmup), end

    def _start(self, state: State) -> None:
        given = self.activities or (("cpu", "cuda") if state.device.type == "cuda" else ("cpu",))
        kept = int(self._end) - state.iteration - self.warmup
        self._profile = profile(
            activities=[_ACTIVITIES[activity] for activity in given],
            schedule=schedule(wait=0, warmup=self.warmup, active=kept, repeat=1),
            on_trace_ready=lambda trace: _export(trace, state),
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
        )
        self._profile.start()

    def close(self) -> None:
        """Ends the profiler, which then writes what it has; once, however the window ends."""
        self._mark("")
        running, self._profile = self._profile, None
        if running is not None:
            running.stop()

    def _mark(self, part: str) -> None:
        """Ends the part of the iteration that was marked last, and begins the next."""
        if self._profile is None and not self.nvtx:
            return
        self._part.close()
        if part and self.nvtx:
            self._part.enter_context(torch.cuda.nvtx.range(part))
        if part and self._profile is not None:
            self._part.enter_context(record_function(part))


def _export(trace: profile, state: State) -> None:
    folder = state.artifacts / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = f"rank={state.rank}-step={state.step}-iteration={state.iteration}"
    trace.export_chrome_trace(str(folder / f"{name}.pt.trace.json.gz"))
    order = "self_cuda_time_total" if state.device.type == "cuda" else "self_cpu_time_total"
    (folder / f"{name}.txt").write_text(trace.key_averages().table(sort_by=order, row_limit=ROWS))
