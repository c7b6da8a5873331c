"""What GPUs can compute at most."""

from __future__ import annotations

import re

PEAKS: dict[tuple[str, ...], dict[str, float]] = {
    # Tesla V100 data sheet (1165301)
    ("V100", "PCIE"): {"fp16": 112e12, "fp32": 14e12},
    ("V100",): {"fp16": 125e12, "fp32": 15.7e12},
    # T4 data sheet (951643)
    ("T4",): {"fp16": 65e12, "fp32": 8.1e12},
    # Ampere GA102 whitepaper v2, appendix A, "with FP32 accumulate"
    ("3090",): {"bf16": 71e12, "fp16": 71e12, "tf32": 35.6e12, "fp32": 35.6e12},
    # A10 data sheet
    ("A10",): {"bf16": 125e12, "fp16": 125e12, "tf32": 62.5e12, "fp32": 31.2e12},
    # A100 data sheet (1758950), the same for SXM and PCIe
    ("A100",): {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
    # Ada whitepaper v2, appendix A, "with FP32 accumulate"
    ("4090",): {"bf16": 165.2e12, "fp16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12},
    # L4 data sheet, halved
    ("L4",): {"bf16": 121e12, "fp16": 121e12, "tf32": 60e12, "fp32": 30.3e12},
    # L40S data sheet (28413)
    ("L40S",): {"bf16": 362e12, "fp16": 362e12, "tf32": 183e12, "fp32": 91.6e12},
    # H100 data sheet, halved
    ("H100", "PCIE"): {"bf16": 756e12, "fp16": 756e12, "tf32": 378e12, "fp32": 51e12},
    ("H100", "NVL"): {"bf16": 835e12, "fp16": 835e12},
    ("H100",): {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12},
    # H200 data sheet, halved; none was found for the NVL
    ("H200", "NVL"): {},
    ("H200",): {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12},
    # Blackwell data sheet (3384703), HGX B200 at 1,000 W, halved
    ("B200",): {"bf16": 2250e12, "fp16": 2250e12, "tf32": 1100e12, "fp32": 75e12},
}
"""FLOPs a second without sparsity, sums kept in fp32, by words of the device's name.

Each is of the document of NVIDIA's above it, as others quote it in public; `halved` where it is told with sparsity.
What no quotation was found for is left out.
"""


def peak_flops(device_name: str, kind: str) -> float | None:
    """The peak of a GPU by the name that torch gives it, for `fp32`, `tf32`, `bf16` or `fp16`; None where it is not
    known, and for a part of a GPU (MIG)."""
    words = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if "MIG" in words:
        return None
    return next((peaks.get(kind) for name, peaks in PEAKS.items() if words.issuperset(name)), None)
