"""Resources of a cluster, of this machine, or those that a run needs."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.experiment.sections.workers import Workers
from orchestrator.units import format_count

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder of NVIDIA's driver with a folder for each GPU of this machine."""
_GPU_KIND = re.compile(r"Model:\s+\w+\s+([A-Z0-9]+)")
"""Kind of a GPU in the text of NVIDIA's driver, as Ray finds it: `H100` in
`NVIDIA H100 80GB HBM3`."""


@dataclass(frozen=True)
class Resources:
    """Resources of a cluster, or those that a run needs."""

    amounts: Mapping[str, float]
    """Amounts by Ray's names: `CPU`, `GPU`, `memory` in bytes, kinds of GPU, and a cluster's custom
    resources."""

    @classmethod
    def required_by(cls, workers: Workers) -> "Resources":
        """Return the minimum that a run needs."""
        processes = workers.min_count + workers.spares
        return cls({name: amount * processes for name, amount in workers.bundle.items()})

    def find_missing(self, present: "Resources") -> dict[str, tuple[float, float]]:
        """Return the resources that `present` lacks: the amount needed, and the amount present."""
        available = {name: present.amounts.get(name, 0) for name in self.amounts}
        return {
            name: (amount, available[name])
            for name, amount in self.amounts.items()
            if amount > available[name]
        }

    def __str__(self) -> str:
        amounts = {"CPU": 0, **self.amounts}
        texts = [
            format_amount(name, amount)
            for name, amount in amounts.items()
            if amount or name == "CPU"
        ]
        return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def format_amount(resource: str, amount: float) -> str:
    """Format an amount of one of Ray's resources: `2 CPUs`, `8 GiB of memory`."""
    if resource == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    kind = resource.removeprefix("accelerator_type:")
    if kind != resource:
        return f"GPUs of the kind {kind}"
    return format_count(amount, resource)


def find_local_resources() -> Resources:
    """Return the resources of this machine, without Ray."""
    import psutil

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
    if visible is None:
        return len(list(_NVIDIA_GPUS.glob("*")))
    return sum(name not in ("", "-1") for name in visible.split(","))


def _find_gpu_kinds() -> set[str]:
    kinds = set()
    for file in _NVIDIA_GPUS.glob("*/information"):
        with suppress(OSError):
            match = _GPU_KIND.search(file.read_text())
            if match:
                kinds.add(match[1])
    return kinds
