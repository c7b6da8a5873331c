"""Traces by torch's profiler."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule

from hooks.hook import Cleanup, Priority
from hooks.needs import Needs
from hooks.setup import Setup
from hooks.state import State

FOLDER = "traces"
ROWS = 100
"""Maximum number of operations in the table."""


@dataclass
class Profiler(Cleanup):
    """Trace a few training iterations with torch's profiler: the work of CPU and GPU, and its
    duration.

        profiler: {skip_first: 10, wait: 5, warmup: 1, active: 3, repeat: 2}

    Counts the run's training iterations: after `skip_first`, each window is `wait`, then `warmup`
    with the profiler but without a trace, then `active` with one. A resumed run continues this
    schedule. Each traced rank writes two files per window under `traces/`, named after the window's
    last iteration, here 19 and 28: `rank=0-step=19-iteration=19.pt.trace.json.gz` for Perfetto,
    chrome://tracing or TensorBoard, and a table of operations, `rank=0-step=19-iteration=19.txt`.
    The spans of an iteration are `data`, `forward`, `loss`, `backward` and `optimizer`. A run that
    ends or fails in a window keeps its trace. Source: MMEngine ProfilerHook, VISSL ProfilingHook,
    iMIX AutogradProfilerHook.
    """

    skip_first: Annotated[int, Ge(0)] = 10
    """Iterations before the first window."""
    wait: Annotated[int, Ge(0)] = 0
    """Iterations without the profiler at the start of a window."""
    warmup: Annotated[int, Ge(0)] = 1
    """Iterations with the profiler but no trace, because the first ones are slow."""
    active: Annotated[int, Ge(1)] = 3
    """Iterations in each trace."""
    repeat: Annotated[int, Ge(0)] = 1
    """Number of windows; 0 means no limit."""
    profiled_ranks: tuple[int, ...] = (0,)
    """Ranks to trace."""
    activities: tuple[Literal["cpu", "cuda"], ...] | None = None
    """Devices to trace; by default the CPU, and the GPU if the run has one."""
    record_shapes: bool = False
    """Recording of the inputs' shapes."""
    profile_memory: bool = False
    """Recording of each operation's memory."""
    with_stack: bool = False
    """Recording of each operation's source line, which is slow."""
    with_flops: bool = False
    """Estimate of the FLOPs of matrix products and convolutions."""
    stop_after: Annotated[bool, Needs("repeat")] = False
    """Stop of the run after the last window."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST

    def __post_init__(self) -> None:
        self._profile: profile | None = None
        self._span = ExitStack()
        self._action: Callable[[int], ProfilerAction] = lambda iteration: ProfilerAction.NONE
        """Function that returns torch's action in the iteration after a number of them."""

    def unsuitable(self, setup: Setup) -> str:
        for name, hook in setup.hooks.items():
            if not isinstance(hook, Profiler) or hook is self:
                continue
            if not set(hook.profiled_ranks).isdisjoint(self.profiled_ranks):
                return (
                    f"torch has one profiler in a process, and '{name}' traces the same ranks;"
                    " trace others (profiled_ranks), or more windows (repeat)"
                )
        return ""

    def on_start(self, state: State) -> None:
        if state.rank in self.profiled_ranks:
            periods = {"wait": self.wait, "warmup": self.warmup, "active": self.active}
            self._action = schedule(skip_first=self.skip_first, repeat=self.repeat, **periods)

    def on_iteration_start(self, state: State) -> None:
        is_waiting = state.phase == "train" and self._profile is None
        if is_waiting and self._action(state.iteration) != ProfilerAction.NONE:
            self._start(state)
        self._mark("data")

    def on_batch(self, state: State) -> None:
        self._mark("forward")

    def on_forward(self, state: State) -> None:
        self._mark("loss")

    def on_loss(self, state: State) -> None:
        span = "backward" if state.phase == "train" else ""
        self._mark(span)

    def on_backward(self, state: State) -> None:
        self._mark("")

    def on_gradients(self, state: State) -> None:
        self._mark("optimizer")

    def on_step(self, state: State) -> None:
        self._mark("")
        if self._profile is None or state.phase != "train":
            return
        self._profile.step()
        if self._action(state.iteration) == ProfilerAction.NONE:
            self.close()
            end = self.skip_first + self.repeat * (self.wait + self.warmup + self.active)
            if self.stop_after and state.iteration >= end:
                state.request_stop(f"the hook '{self.name}' has written its traces")

    def _start(self, state: State) -> None:
        present = ["cpu", "cuda"] if state.device.type == "cuda" else ["cpu"]
        activities = self.activities or present
        first = state.iteration
        self._profile = profile(
            activities=[getattr(ProfilerActivity, activity.upper()) for activity in activities],
            schedule=lambda step: self._action(first + step),
            on_trace_ready=lambda trace: _export(trace, state),
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
        )
        self._profile.start()

    def close(self) -> None:
        """Stop the profiler, which then writes its trace; no effect when called again."""
        self._mark("")
        running = self._profile
        self._profile = None
        if running is not None:
            running.stop()

    def _mark(self, span: str) -> None:
        """End the last span of the iteration, and start the next unless its name is empty."""
        if self._profile is None:
            return
        self._span.close()
        if span:
            self._span.enter_context(record_function(span))


def _export(trace: profile, state: State) -> None:
    folder = state.artifacts / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = f"rank={state.rank}-step={state.step}-iteration={state.iteration}"
    trace.export_chrome_trace(str(folder / f"{name}.pt.trace.json.gz"))
    order = "self_cuda_time_total" if state.device.type == "cuda" else "self_cpu_time_total"
    (folder / f"{name}.txt").write_text(trace.key_averages().table(sort_by=order, row_limit=ROWS))
