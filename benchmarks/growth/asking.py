"""Agreement of ranks on stopping, at steps of 10 ms: its frequency, and its share of the time. The
ring is
simulated: an answer goes around twice, at 20 us from rank to rank, and the wait for a late rank
    comes on top."""

from collections.abc import Sequence
from typing import Any, cast
from unittest import mock

from benchmarks.growth.law import print_growth
from hooks import State
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopCoordinator

HOP_S, STEP_S, STEPS = 20e-6, 0.01, 100_000


class Ring:
    """Ranks among which a question takes as long as it goes around; the last to come waits for
    nothing else."""

    def __init__(self, ranks: int) -> None:
        self.world_size, self.now, self.took_s, self.calls = ranks, 0.0, 2 * (ranks - 1) * HOP_S, 0

    def maximum(self, values: list[float]) -> list[float]:
        self.now += self.took_s
        self.calls += 1
        return values

    def clock(self) -> float:
        return self.now


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (8, 256, 1024, 10_000)
    costs: dict[str, list[float]] = {
        "seconds it takes": [],
        "seconds between": [],
        "% of the time": [],
    }
    for ranks in sizes:
        ring, clock, state = Ring(ranks), SpanClock(), State()
        clock.iteration_s = STEP_S
        coordinator = StopCoordinator(state, cast(Any, ring), clock, lambda: False)
        with mock.patch("orchestrator.loop.stopping.perf_counter", ring.clock):
            for state.iteration in range(1, STEPS + 1):
                ring.now += STEP_S
                if state.iteration >= coordinator.next_check:
                    coordinator.is_stop_requested()
        costs["seconds it takes"].append(ring.took_s)
        costs["seconds between"].append(ring.now / ring.calls)
        costs["% of the time"].append(100 * ring.calls * ring.took_s / ring.now)
    print_growth("does anybody stop?", "ranks", sizes, costs)
