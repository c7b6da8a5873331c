"""Throughput of training, and its share of the device's peak."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, at_interval
from hooks.logs.shared.readings import read
from hooks.recent import RECENT
from hooks.state import State
from hooks.stats.shared.peak_flops import find_peak, find_precision

PASSES_OF_TRAINING = 3
"""Cost of a training step in forward passes: backward computes gradients of inputs and of
weights."""


@dataclass
class Throughput(Hook):
    """Measure the speed of training over the last iterations: samples and FLOPs per second, and the
    model FLOPs utilization (MFU).

        throughput: {every: 50 iterations, window: 100}

    Time includes hooks and checkpoints, but not validation. FLOPs are known on the master, in a run
    with `model_complexity`.

    Columns:
        * `samples_per_s`: Samples per second of this rank.
        * `world_samples_per_s`: That by the number of ranks, which keep in step.
        * `flops_per_s`: FLOPs per second, each iteration counted as three forward passes.
        * `mfu`: `flops_per_s` as a share of the device's peak, 0 to 1, if the peak is known.

    Metrics:
        * `throughput/world_samples_per_s`, `throughput/flops_per_s`, `throughput/mfu`: The same at
          a report, of rank 0.

    Source: composer SpeedMonitor; MFU: "PaLM" (Chowdhery et al., 2022), appendix B.
    """

    every: Iterations = Interval(50, "iterations")
    """Training iterations between measurements."""
    window: Annotated[int, Ge(1), Le(RECENT)] = 100
    """Number of training iterations in a measurement."""
    peak_flops: Annotated[float, Gt(0)] | None = None
    """Peak FLOPs per second of the device; by default NVIDIA's figure for the GPU and the
    precision, if known."""

    state_fields: ClassVar[tuple[str, ...]] = ("_last",)

    def __post_init__(self) -> None:
        self._peak: float | None = self.peak_flops
        self._last: dict[str, float] = {}

    def on_start(self, state: State) -> None:
        if self.peak_flops is None and state.device.type == "cuda":
            self._peak = find_peak(torch.cuda.get_device_name(state.device), find_precision(state))

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            state.record(**self._measure(state))

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self._last = self._measure(state)

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        for name, value in self._last.items():
            if name != "samples_per_s":
                metrics[f"throughput/{name}"] = value
        self._last = {}

    def _measure(self, state: State) -> dict[str, float]:
        """Measure over the last closed rows, because the time of the current one is unknown."""
        columns = state.recent.columns(self.window, phase="train", names=("step_s", "batch_size"))
        times = read(columns.get("step_s", ()))
        seconds = 0.0
        samples = 0
        for time, size in zip(times, columns.get("batch_size", ()), strict=True):
            if time is not None:
                seconds += time
                samples += size
        if seconds <= 0:
            return {}

        samples_per_s = samples / seconds
        measured = {
            "samples_per_s": samples_per_s,
            "world_samples_per_s": samples_per_s * state.world_size,
        }
        if "flops_per_sample" in state.info:
            flops_per_sample = PASSES_OF_TRAINING * state.info["flops_per_sample"]
            measured["flops_per_s"] = flops_per_sample * samples_per_s
            if self._peak is not None:
                measured["mfu"] = measured["flops_per_s"] / self._peak
        return measured
