"""A step of GPT-2 124M with the default hooks, to a raw one: bf16, compiled, 16 blocks of 1,024
tokens; and how well it uses the GPU.

python -m benchmarks.gpu --only gpt2
"""

import torch

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.steps import print_ratios
from benchmarks.gpu.workloads import Tokens, Workload
from hooks.stats.shared.peak_flops import find_peak

OPTIMIZER = {"type": "AdamW", "lr": 3e-4, "fused": True}


def part(device: Device) -> None:
    settings = {"precision": "bf16", "compile": device.is_cuda, "optimizer": OPTIMIZER}
    workload = Workload(
        Tokens,
        device,
        batch=16 if device.is_cuda else 2,
        steps=20 if device.is_cuda else 2,
        settings=settings,
    )
    step_s = print_ratios(
        "GPT-2 124M, bf16, compile, 16 x 1,024",
        workload,
        rounds=8 if device.is_cuda else 1,
        aim=1.005,
    )
    model = workload.resident_task.model()
    tokens_per_s = workload.batch * model.context / step_s
    print_row("GPT-2 124M: tokens a second", f"{tokens_per_s:,.0f}")
    peak = find_peak(torch.cuda.get_device_name(device.torch), "bf16") if device.is_cuda else None
    if peak:
        print_row(
            "GPT-2 124M: model FLOPs to the peak",
            f"{model.flops_per_token() * tokens_per_s / peak:.3f}",
        )


if __name__ == "__main__":
    run(part)
