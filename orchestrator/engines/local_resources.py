"""The resources of this machine, without Ray."""

import os
import re
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import psutil

from orchestrator.engines.resources import Resources

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder of NVIDIA's driver with a folder for each GPU of this machine."""
_GPU_KIND = re.compile(r"Model:\s+\w+\s+([A-Z0-9]+)")
"""Kind of a GPU in the text of NVIDIA's driver, as Ray finds it: `H100` in
`NVIDIA H100 80GB HBM3`."""


def find_local_resources() -> Resources:
    """Return the resources of this machine."""
    gpus = _count_visible_gpus()
    amounts: dict[str, float] = {
        "CPU": os.cpu_count() or 1,
        "GPU": gpus,
        "memory": psutil.virtual_memory().total,
    }
    if gpus:
        amounts |= {f"accelerator_type:{kind}": 1.0 for kind in _find_gpu_kinds()}
    return Resources(amounts)


def _count_visible_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA shows only the GPUs that precede an invalid one.
        names = takewhile(lambda name: name not in ("", "-1"), visible.split(","))
        return len(list(names))
    return len(list(_NVIDIA_GPUS.glob("*"))) or _count_gpus_of_torch()


def _count_gpus_of_torch() -> int:
    """Count the GPUs that NVIDIA's driver does not list in `/proc`: AMD's, and those in WSL2."""
    import torch  # takes seconds, and most machines with GPUs need only the driver

    return torch.cuda.device_count()


def _find_gpu_kinds() -> set[str]:
    kinds = set()
    for file in _NVIDIA_GPUS.glob("*/information"):
        with suppress(OSError):
            match = _GPU_KIND.search(file.read_text())
            if match:
                kinds.add(match[1])
    return kinds
