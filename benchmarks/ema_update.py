"""Time of an EMA update, compared with one flat lerp_ over the same number of floats.

25 million parameters in 100 tensors, which are views of the flat tensor: all contenders read the
same memory, as where it lies moves a ratio by a tenth and more. They take turns in each repeat, so
that what else the machine does falls on all of them alike; each ratio is the median over repeats of
its time by the flat lerp_'s of the same repeat. Then the update of a model of 4 small tensors,
where only the overhead counts. The claim: at most 1.10 of the flat lerp_.

    python -m benchmarks.ema_update [repeats] [threads]
"""

import sys
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.timing import print_table, ratio
from hooks import State
from hooks.training.ema import EMA


def seconds(function: Callable[[], object], times: int = 1) -> float:
    """Return the time of one call, as the mean over `times` calls."""
    start = perf_counter()
    for _ in range(times):
        function()
    return (perf_counter() - start) / times


def updates_of(module: nn.Module) -> dict[str, Callable[[], object]]:
    """The hook's update of a model and torch's, both past their first update, which is a copy."""
    state, hook = State(module=module), EMA(decay=0.99)
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    updates: dict[str, Callable[[], object]] = {
        "`EMA.on_update`": lambda: hook.on_update(state),
        "`AveragedModel.update_parameters`": lambda: averaged.update_parameters(module),
    }
    for update in updates.values():
        update()
    return updates


def take_turns(
    contenders: Mapping[str, Callable[[], object]], repeats: int, times: int = 1
) -> dict[str, list[float]]:
    """The seconds of each contender in each repeat; two repeats before them are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 2):
        for name, function in contenders.items():
            taken[name].append(seconds(function, times))
    return {name: values[2:] for name, values in taken.items()}


def main(repeats: int = 50, threads: int = 1) -> None:
    torch.set_num_threads(threads)
    weights = torch.randn(100, 500, 500)
    large = nn.ParameterList(weights.unbind())
    small = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    average = torch.randn_like(weights)
    taken = take_turns(
        {"flat `lerp_`": lambda: average.lerp_(weights, 0.01), **updates_of(large)}, repeats
    )
    overhead = take_turns(updates_of(small), repeats, times=100)
    rows = []
    for name, values in taken.items():
        us = f"{median(overhead[name]) * 1e6:.1f}" if name in overhead else ""
        rows.append(
            (name, f"{median(values) * 1e3:.2f}", f"{ratio(values, taken['flat `lerp_`']):.3f}", us)
        )
    columns = [
        "update",
        f"ms, {weights.numel() / 1e6:.0f}M floats in {len(large)} tensors",
        "to the flat one",
        "us, 4 small tensors",
    ]
    print_table(
        f"EMA update ({threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__})",
        columns,
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
