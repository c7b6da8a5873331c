"""Steps side by side: the rows that compare a hooked step with a raw one."""

from statistics import median

from benchmarks.gpu.part import print_row
from benchmarks.gpu.workloads import Workload, hookyard, raw, side_by_side
from benchmarks.timing import ratio


def print_ratios(what: str, workload: Workload, rounds: int, aim: float) -> float:
    """Prints what a step takes to a raw one, of Hookyard and of peers; returns the seconds of
    Hookyard's."""
    seconds = side_by_side(workload, rounds, {"raw": raw, "Hookyard, default hooks": hookyard})
    for name, times in seconds.items():
        step_ms = median(times) / workload.steps * 1e3
        if name == "raw":
            print_row(f"{what}: raw step", f"{step_ms:.3f} ms")
        else:
            print_row(
                f"{what}: {name} to raw",
                f"{ratio(times, seconds['raw']):.4f}",
                f"<= {aim}" if name.startswith("Hookyard") else "",
            )
    return median(seconds["Hookyard, default hooks"]) / workload.steps
