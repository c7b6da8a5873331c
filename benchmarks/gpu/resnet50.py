"""A step of ResNet-50 with the default hooks, to a raw one: bf16, channels_last, 256 synthetic
pictures.

python -m benchmarks.gpu --only resnet50
"""

from benchmarks.gpu.part import Device, run
from benchmarks.gpu.steps import print_ratios
from benchmarks.gpu.workloads import Pictures, Workload

SETTINGS = {
    "precision": "bf16",
    "channels_last": True,
    "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
}


def part(device: Device) -> None:
    workload = Workload(
        Pictures,
        device,
        batch=256 if device.is_cuda else 4,
        steps=20 if device.is_cuda else 2,
        settings=SETTINGS,
    )
    print_ratios(
        "ResNet-50, bf16, channels_last, batch 256",
        workload,
        rounds=8 if device.is_cuda else 1,
        aim=1.005,
    )


if __name__ == "__main__":
    run(part)
