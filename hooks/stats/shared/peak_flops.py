"""Peak FLOPs per second of GPUs."""

import re
from typing import Any

import torch
from torch import nn

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

_OTHER_CHIPS = frozenset({"MIG", "TI", "D", "LAPTOP", "FHHL"})
"""Words of a name for a part of a GPU, or for another chip than the same name without it."""

_Convolution = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)


def find_peak(device_name: str, precision: str) -> float | None:
    """Return the peak of a GPU, by torch's name of it, for `fp32`, `tf32`, `bf16` or `fp16`.

    None if it is unknown, as for a part of a GPU (MIG) and for the GPU of a laptop.
    """
    words = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if not words.isdisjoint(_OTHER_CHIPS):
        return None
    for name, peaks in PEAKS.items():
        if words.issuperset(name):
            return peaks.get(precision)
    return None


def find_precision(state: State) -> str:
    """Return the precision of most of the work: of convolutions if there are any, else of matrix
    products, as torch uses TF32 by default only for the former."""
    precision = str(state.config.get("precision", "fp32"))
    if precision != "fp32":
        return precision
    convolves = any(isinstance(module, _Convolution) for module in state.module.modules())
    cudnn: Any = torch.backends.cudnn
    backend = cudnn.conv if convolves else torch.backends.cuda.matmul
    return "tf32" if backend.fp32_precision == "tf32" else "fp32"
