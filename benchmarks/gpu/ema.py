"""An update of the moving average, to one pass over memory: the bytes it must move at the bandwidth
of a copy measured beside it.

python -m benchmarks.gpu --only ema
"""

import torch

from benchmarks.gpu.models import weights
from benchmarks.gpu.part import Device, print_row, run
from hooks import State
from hooks.training.ema import EMA

REPEATS = 20


def part(device: Device) -> None:
    for name, parameters in (
        (("124M", 124_000_000), ("1B", 1_000_000_000))
        if device.is_cuda
        else (("100k", 100_000), ("1M", 1_000_000))
    ):
        module = weights(parameters, device.torch)
        source, target = torch.randn(2, parameters, device=device.torch)
        copy_s = device.median_s(lambda source=source, target=target: target.copy_(source), REPEATS)
        del source, target
        hook, state = EMA(decay=0.999), State(module=module, device=device.torch)
        update_s = device.median_s(lambda hook=hook, state=state: hook.on_update(state), REPEATS)
        # The average and the weights are read, the average is written: three passes, where a copy
        # makes two.
        print_row(
            f"EMA of {name} parameters, an update to one pass over memory",
            f"{update_s / (copy_s * 3 / 2):.3f}",
            "<= 1.15",
        )
        print_row(
            f"bandwidth of a copy of {4 * parameters / 1e9:.3g} GB",
            f"{8 * parameters / copy_s / 1e9:,.0f} GB/s",
        )


if __name__ == "__main__":
    run(part)
