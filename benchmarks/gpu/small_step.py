"""A step for which the CPU is the limit: the default hooks, and the same step replayed as CUDA
graphs, to a raw one.

python -m benchmarks.gpu --only small_step
"""

from collections.abc import Callable
from functools import partial

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.steps import print_ratios
from benchmarks.gpu.workloads import Numbers, Workload, hookyard, raw
from benchmarks.timing import ratio, take_turns

CAPTURED = "perceptron of 12 layers, compiled (mode: reduce-overhead) to raw"
SETTINGS = {"optimizer": {"type": "AdamW", "lr": 1e-4}}


def part(device: Device) -> None:
    rounds = 10 if device.is_cuda else 1
    workload = Workload(
        Numbers, device, batch=32, steps=200 if device.is_cuda else 5, settings=SETTINGS
    )
    print_ratios("perceptron of 12 layers", workload, rounds, aim=1.03)
    if not device.is_cuda:
        return
    trains: dict[str, Callable[..., None]] = {
        "raw": raw,
        "captured": partial(hookyard, compile={"mode": "reduce-overhead"}),
    }
    seconds = take_turns(
        {name: partial(train, workload, rounds + 1) for name, train in trains.items()}, rounds
    )
    print_row(CAPTURED, f"{ratio(seconds['captured'], seconds['raw']):.3f}")


if __name__ == "__main__":
    run(part, needs_cuda=[CAPTURED])
