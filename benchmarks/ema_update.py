"""What an EMA update costs beside one flat lerp_ over as many floats.

Run it from the project's root: `python -m benchmarks.ema_update [--threads 1] [--repeats 50]`.
25 million parameters in 100 tensors, which are views of the flat tensor: all contenders read the same memory, as where
it lies moves a ratio by a tenth and more. They take turns in each repeat, so that what else the machine does falls on
all of them alike; each ratio is the median over repeats of its time by the flat lerp_'s of the same repeat. Then the
update of a model of 4 small tensors, where only the overhead counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hooks import State
from hooks.training.ema import EMA


def seconds(function: Callable[[], object], times: int = 1) -> float:
    """What one call takes, as the mean of `times`."""
    start = perf_counter()
    for _ in range(times):
        function()
    return (perf_counter() - start) / times


def updates_of(module: nn.Module) -> dict[str, Callable[[], object]]:
    """The hook's update of a model and torch's, both past their first update, which is a copy."""
    state, hook = State(module=module), EMA(decay=0.99)
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    updates: dict[str, Callable[[], object]] = {
        "EMA.on_update": lambda: hook.on_update(state),
        "AveragedModel.update_parameters": lambda: averaged.update_parameters(module),
    }
    for update in updates.values():
        update()
    return updates


def take_turns(contenders: Mapping[str, Callable[[], object]], repeats: int, times: int = 1) -> dict[str, list[float]]:
    """The seconds of each contender in each repeat; two repeats before them are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 2):
        for name, function in contenders.items():
            taken[name].append(seconds(function, times))
    return {name: values[2:] for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    weights = torch.randn(100, 500, 500)
    large = nn.ParameterList(weights.unbind())
    average = torch.randn_like(weights)
    contenders = {"flat lerp_": lambda: average.lerp_(weights, 0.01), **updates_of(large)}
    taken = take_turns(contenders, arguments.repeats)
    print(f"{weights.numel() / 1e6:.0f}M floats in {len(large)} tensors, {arguments.threads} thread(s), torch {torch.__version__}")
    for name, values in taken.items():
        ratio = median(own / flat for own, flat in zip(values, taken["flat lerp_"], strict=True))
        print(f"  {name:32} {median(values) * 1e3:7.2f} ms   {ratio:.3f} of the flat lerp_")

    small = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    print("4 small tensors")
    for name, values in take_turns(updates_of(small), arguments.repeats, times=100).items():
        print(f"  {name:32} {median(values) * 1e6:7.2f} us")


if __name__ == "__main__":
    main()
