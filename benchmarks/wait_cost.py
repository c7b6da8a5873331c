"""Cost of measuring the wait for other ranks in an iteration under `DistributedDataParallel`.

Two contestants take turns in one process: the same perceptron on the same batch under DDP, with and
without the mark at the end of the rank's own backward pass. Its process group has this one rank, so
that no other rank's time is measured; what the mark costs does not depend on their number. The
claim: 10 microseconds an iteration at most.

    python -m benchmarks.wait_cost [rounds] [iterations of a round]
"""

import sys
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.perceptron import make_model
from benchmarks.timing import Pause, print_table, ratio, take_turns
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.step.backward_timer import BackwardTimer

BATCH = 32


def training(measured: bool, rounds: int, iterations: int) -> Callable[[Pause], None]:
    def train(pause: Pause) -> None:
        model, clock = DistributedDataParallel(make_model(), broadcast_buffers=False), SpanClock()
        clock.recording = True
        own = BackwardTimer(model, clock) if measured else None
        images, labels = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
        for _ in range(rounds + 1):
            for _ in range(iterations):
                functional.cross_entropy(model(images), labels).backward()
                if own is not None:
                    own.take(0.0)
                model.zero_grad()
            pause()

    return train


def main(rounds: int = 40, iterations: int = 200) -> None:
    torch.set_num_threads(1)
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch leaves it out of __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    names = {"DDP alone": False, "with the wait measured": True}
    seconds = take_turns(
        {name: training(measured, rounds, iterations) for name, measured in names.items()}, rounds
    )
    dist.destroy_process_group()
    alone = seconds["DDP alone"]
    rows = [
        (
            name,
            f"{median(times) / iterations * 1e6:.1f}",
            f"{median(mine - theirs for mine, theirs in zip(times, alone, strict=True)) / iterations * 1e6:.1f}",
            f"{ratio(times, alone):.3f}",
        )
        for name, times in seconds.items()
    ]
    print_table(
        f"The wait measured ({rounds} rounds of {iterations} iterations, in turns)",
        ["loop", "us", "us more", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
