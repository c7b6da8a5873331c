"""The law of a growth: the power of the size with which a cost grows."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.timing import print_table


def law(sizes: Sequence[float], costs: Sequence[float]) -> str:
    """`n^1.0` where the cost doubles with the size: the slope of a line through the logarithms."""
    if len(sizes) < 2 or min(costs) <= 0:
        return "-"
    return f"n^{np.polyfit(np.log(sizes), np.log(costs), 1)[0]:.1f}"


def print_growth(
    title: str, unit: str, sizes: Sequence[int], costs: Mapping[str, Sequence[float]]
) -> None:
    """Prints a row for each cost, a number for each size, in `unit` of whatever is counted; and its
    law."""
    columns = [unit, *(f"{size:,}" for size in sizes), "law"]
    print_table(
        title,
        columns,
        [(name, *(f"{cost:.3g}" for cost in own), law(sizes, own)) for name, own in costs.items()],
    )
