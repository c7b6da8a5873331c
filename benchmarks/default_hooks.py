"""Processor time of each default hook where it runs: between the iterations of a training loop.

A hook that acts in one of 50 iterations finds little of its code and data in the processor's caches,
so a loop of its calls alone would measure a fraction of its cost. Therefore `loop_overhead`'s
perceptron trains with the default hooks, and each call of a hook in an iteration is timed by the
processor time of its thread, which other work on the machine hardly changes. The cost of an
iteration is the median of these calls, less that of a call that does nothing, times the share of
iterations that have one. A flush of rows counts likewise.

    python -m benchmarks.default_hooks [epochs]
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from statistics import median
from time import thread_time_ns
from typing import Any

import torch

from benchmarks.loop_overhead import BATCH, IDLE, NO_HOOKS, hookyard
from benchmarks.perceptron import make_data
from benchmarks.timing import print_table
from hooks import HOOKS
from orchestrator.disk.rows.recorder import Recorder

TIMED = {
    "memory_stats": (HOOKS["memory_stats"], "on_step"),
    "console": (HOOKS["console"], "on_step"),
    "perf_stats": (HOOKS["perf_stats"], "on_step"),
    "flush of rows": (Recorder, "_flush_pending"),
}
"""Methods to time, by the name of their row."""


class Timer:
    """Timer of methods: nanoseconds of each call by name."""

    def __init__(self) -> None:
        self.calls: dict[str, list[int]] = defaultdict(list)

    def time(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            start = thread_time_ns()
            try:
                return method(*arguments, **options)
            finally:
                self.calls[name].append(thread_time_ns() - start)

        return timed


def main(epochs: int = 20) -> None:
    torch.set_num_threads(1)
    iterations = epochs * -(-len(make_data()) // BATCH)
    timer = Timer()
    for name, (cls, method) in TIMED.items():
        setattr(cls, method, timer.time(name, getattr(cls, method)))
    rows = []
    for title, hooks in (("no hooks", NO_HOOKS), ("default hooks", IDLE)):
        timer.calls.clear()
        nothing = timer.time("nothing", lambda: None)
        with tempfile.TemporaryDirectory() as folder:
            hookyard(make_data(), epochs, nothing, folder, hooks)
        calls = timer.calls
        base = median(calls.pop("nothing"))
        for name, times in calls.items():
            cost_us = (median(times) - base) / 1000
            share = len(times) / iterations
            rows.append(
                (f"{title}: {name}", f"{cost_us:.0f}", f"{share:.4f}", f"{cost_us * share:.2f}")
            )
    print_table(
        f"Default hooks in place ({iterations} iterations)",
        ["hook", "us a call", "calls an iteration", "us an iteration"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
