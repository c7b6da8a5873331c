"""The peak of memory with the default hooks, to that of the raw loop.

python -m benchmarks.gpu --only memory
"""

import gc
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.recorded import column
from benchmarks.gpu.resnet50 import SETTINGS
from benchmarks.gpu.workloads import Pictures, Workload, hookyard, raw

PEAK = "ResNet-50, peak of memory: default hooks to raw"


def part(device: Device) -> None:
    workload = Workload(
        Pictures,
        device,
        batch=256 if device.is_cuda else 4,
        steps=10 if device.is_cuda else 2,
        settings=SETTINGS,
    )
    raw(workload, 1, lambda: None)
    base = _peak(device)
    with tempfile.TemporaryDirectory() as folder:
        hookyard(workload, 1, lambda: None, folder=folder)
        # memory_stats resets the peak as it reads it.
        peak = max([_peak(device), *column(Path(folder), "cuda_peak_allocated_bytes")])
    if device.is_cuda:
        print_row(PEAK, f"{peak / base:.4f}", "<= 1.01")


def _peak(device: Device) -> float:
    """The peak since this was last asked."""
    if not device.is_cuda:
        return 0.0
    peak = torch.cuda.max_memory_allocated(device.torch)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.torch)
    return float(peak)


if __name__ == "__main__":
    run(part, needs_cuda=[PEAK])
