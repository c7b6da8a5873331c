"""Wait of a step for its data when loading is faster: 12 processes, page-locked batches, copies
beside the work.

python -m benchmarks.gpu --only loading
"""

import tempfile
from pathlib import Path

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.recorded import column
from benchmarks.gpu.resnet50 import SETTINGS
from benchmarks.gpu.workloads import Loaded, Workload, hookyard

FIRST = 10
"""Iterations in which the processes start."""


def part(device: Device) -> None:
    workload = Workload(
        Loaded,
        device,
        batch=256 if device.is_cuda else 4,
        steps=120 if device.is_cuda else FIRST + 5,
        settings=SETTINGS,
    )
    processes = 12 if device.is_cuda else 1
    with tempfile.TemporaryDirectory() as folder:
        hookyard(workload, 1, lambda: None, folder=folder, loader={"num_workers": processes})
        waits, steps = (column(Path(folder), name)[FIRST:] for name in ("data_wait_s", "step_s"))
    print_row(
        f"ResNet-50 fed by {processes} processes: data_wait_s of the step",
        f"{sum(waits) / sum(steps):.4f}",
        "<= 0.01",
    )


if __name__ == "__main__":
    run(part)
