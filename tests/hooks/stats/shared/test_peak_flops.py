"""Peaks of GPUs, against NVIDIA's documents."""

import re

import pytest

from hooks.stats.shared.peak_flops import find_peak

PEAKS_BY_NAME = """
NVIDIA A100-SXM4-80GB: bf16 312; NVIDIA A100-SXM4-80GB: tf32 156; NVIDIA A100 80GB PCIe: fp32 19.5
NVIDIA H100 80GB HBM3: bf16 989; NVIDIA H100 PCIe: bf16 756; NVIDIA H100 NVL: fp16 835
NVIDIA H100 NVL: fp32 -; NVIDIA H200: bf16 989; NVIDIA H200 NVL: bf16 -; NVIDIA B200: tf32 1100
NVIDIA L4: bf16 121; NVIDIA L40S: bf16 362
NVIDIA GeForce RTX 4090: fp16 165.2; Tesla V100-PCIE-16GB: fp16 112; Tesla V100-SXM2-32GB: fp16 125
Tesla V100-SXM2-32GB: bf16 -; Tesla T4: fp16 65; NVIDIA A10G: bf16 -; NVIDIA A100-SXM4-40GB MIG 1g.5gb: bf16 -
NVIDIA GB10: bf16 -; NVIDIA GeForce RTX 3090: bf16 71; NVIDIA GeForce RTX 3090 Ti: bf16 -
NVIDIA GeForce RTX 4090 Laptop GPU: bf16 -; NVIDIA GeForce RTX 4090 D: bf16 -; Tesla V100-FHHL-16GB: fp16 -
"""
"""TFLOPs a second of NVIDIA's documents; `-` where there is none."""


@pytest.mark.parametrize(
    "case",
    re.split(r"; |\n", PEAKS_BY_NAME.strip()),
)
def test_gpu_peaks_are_found_by_whole_words(case: str) -> None:
    name, _, value = case.partition(": ")
    precision, tera = value.split()
    assert find_peak(name, precision) == (
        None if tera == "-" else pytest.approx(float(tera) * 1e12)
    )
