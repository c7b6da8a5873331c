"""How fast training is now, and what share of the device's peak that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import nn

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, paced_by
from hooks.parts.gpu_peaks import peak_flops
from hooks.parts.logs.readings import read
from hooks.recent_rows import RECENT
from hooks.state import State

BACKWARD_AND_FORWARD = 3
"""What training costs in forward passes: backward differentiates by inputs and by weights."""


@dataclass
class Throughput(Hook):
    """Measures training's speed over the last iterations, in samples and, where they are known, in FLOPs.

    Every rank measures itself; no communication. perf_stats says how fast whole phases were; this says how fast
    training is at the moment, and how well it uses the device. Records `samples_per_s` of this rank and
    `world_samples_per_s` (times the number of ranks, which keep in step); on a rank that knows `flops_per_sample`
    (model_complexity, on the master) also `flops_per_s`, three times those of the forward pass, and `mfu`, their share
    of the peak, from 0 to 1. A report has them at the end of training as `throughput/...`. Time is that of whole
    iterations, on a GPU of those it is through with, with hooks and checkpoints and without validation; samples are
    those that were in the batches. Source: composer SpeedMonitor, Lightning ThroughputMonitor; MFU: "PaLM" (Chowdhery
    et al., 2022), appendix B.
    """

    every: Iterations = Interval(50, "iterations")
    """Training iterations between two measurements."""
    window: Annotated[int, Ge(1), Le(RECENT)] = 100
    """Training iterations that a measurement looks back on."""
    peak_flops: Annotated[float, Gt(0)] | None = None
    """FLOPs a second the device could do; where it is not said, NVIDIA's figure for the GPU and the precision, if
    known."""

    def __post_init__(self) -> None:
        self._peak: float | None = self.peak_flops
        self._last: dict[str, float] = {}

    def on_start(self, state: State) -> None:
        if self.peak_flops is None and state.device.type == "cuda":
            self._peak = peak_flops(torch.cuda.get_device_name(state.device), _kind(state))

    @paced_by("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            state.record(**self._measure(state))

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self._last = self._measure(state)

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics.update({f"throughput/{name}": value for name, value in self._last.items() if name != "samples_per_s"})
        self._last = {}

    def _measure(self, state: State) -> dict[str, float]:
        """Over the last closed rows: the present one's time is not known yet."""
        columns = state.recent.columns(self.window, phase="train", names=("step_s", "batch_size"))
        timed = [
            (time, size)
            for time, size in zip(read(columns.get("step_s", ())), columns.get("batch_size", ()), strict=True)
            if time is not None
        ]
        seconds = sum(time for time, _ in timed)
        if seconds <= 0:
            return {}
        samples_per_s = sum(size for _, size in timed) / seconds
        measured = {"samples_per_s": samples_per_s, "world_samples_per_s": samples_per_s * state.world_size}
        if "flops_per_sample" in state.info:
            measured["flops_per_s"] = BACKWARD_AND_FORWARD * state.info["flops_per_sample"] * samples_per_s
            if self._peak is not None:
                measured["mfu"] = measured["flops_per_s"] / self._peak
        return measured


def _kind(state: State) -> str:
    """What most of the work is computed in: that of convolutions, where there are any, else of matrix products. Torch's
    default is TF32 for the one and fp32 for the other."""
    precision = str(state.config.get("precision", "fp32"))
    if precision != "fp32":
        return precision
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in state.module.modules())
    cudnn: Any = torch.backends.cudnn
    backend = cudnn.conv if convolves else torch.backends.cuda.matmul
    return "tf32" if backend.fp32_precision == "tf32" else "fp32"
