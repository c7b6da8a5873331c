"""Throughput of training, and its share of the device's peak."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import nn

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, at_interval
from hooks.logs.shared.readings import read
from hooks.recent import RECENT
from hooks.state import State

PEAKS: dict[tuple[str, ...], dict[str, float]] = {
    ("V100", "PCIE"): {"fp16": 112e12, "fp32": 14e12},
    ("V100",): {"fp16": 125e12, "fp32": 15.7e12},
    ("T4",): {"fp16": 65e12, "fp32": 8.1e12},
    ("3090",): {"bf16": 71e12, "fp16": 71e12, "tf32": 35.6e12, "fp32": 35.6e12},
    ("A10",): {"bf16": 125e12, "fp16": 125e12, "tf32": 62.5e12, "fp32": 31.2e12},
    ("A100",): {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
    ("4090",): {"bf16": 165.2e12, "fp16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12},
    ("L4",): {"bf16": 121e12, "fp16": 121e12, "tf32": 60e12, "fp32": 30.3e12},
    ("L40S",): {"bf16": 362e12, "fp16": 362e12, "tf32": 183e12, "fp32": 91.6e12},
    ("H100", "PCIE"): {"bf16": 756e12, "fp16": 756e12, "tf32": 378e12, "fp32": 51e12},
    ("H100", "NVL"): {"bf16": 835e12, "fp16": 835e12},
    ("H100",): {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12},
    ("H200", "NVL"): {},
    ("H200",): {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12},
    ("B200",): {"bf16": 2250e12, "fp16": 2250e12, "tf32": 1100e12, "fp32": 75e12},
}
"""Dense FLOPs per second with fp32 accumulation, by words in the device's name. Unknown values are
missing.

Source: NVIDIA's data sheets, for the 3090 and 4090 the GA102 and Ada whitepapers, appendix A;
halved where the document counts sparsity (L4, H100, H200, B200).
"""

OTHER_CHIPS = frozenset({"MIG", "TI", "D", "LAPTOP", "FHHL"})
"""Words of a name for a part of a GPU, or for another chip than the same name without it."""

Convolution = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)

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
            self._peak = peak_flops(torch.cuda.get_device_name(state.device), _precision(state))

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


def _precision(state: State) -> str:
    """Return the precision of most of the work: of convolutions if there are any, else of matrix
    products, as torch uses TF32 by default only for the former."""
    precision = str(state.config.get("precision", "fp32"))
    if precision != "fp32":
        return precision
    convolves = any(isinstance(module, Convolution) for module in state.module.modules())
    cudnn: Any = torch.backends.cudnn
    backend = cudnn.conv if convolves else torch.backends.cuda.matmul
    return "tf32" if backend.fp32_precision == "tf32" else "fp32"


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak of a GPU, by torch's name of it, for `fp32`, `tf32`, `bf16` or `fp16`.

    None if it is unknown, as for a part of a GPU (MIG) and for the GPU of a laptop.
    """
    words = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if not words.isdisjoint(OTHER_CHIPS):
        return None
    for name, peaks in PEAKS.items():
        if words.issuperset(name):
            return peaks.get(precision)
    return None
