"""What observing costs at a hook's default pace, and with a budget: while the pace settles, after it, and after a
change of load.

Every hook that ships and has a pace, on a small and on a larger model. In the first half of a run the model is gone
through three times a step, in the second once, so that the same look is a larger share. All is judged by processor
time, as other work on the machine makes wall time long: what paces are steered by, and what is reported, by how much
steps with a look are longer than the mean of those without, over all of the time. Shares are of the four parts of a
run: the first quarter of each half, and the rest of it. As one look may be dearer than what such a part has for it,
there is also what was owed at most: the level of a leaky bucket that looks fill and the share of the time empties. No
stretch of a run, wherever it begins, has more than its share and that.

    python -m benchmarks.observation_budget [hook ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, product
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from benchmarks.timing import print_table
from hooks import HOOKS, Budget, Hook, Priority, Rhythm, State, budget_control, plan
from hooks.budget_control import replaced_fields, steered_paces
from orchestrator import Experiment, Task
from orchestrator.config.experiment import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "empty_cache": {"after_iter": True},
    "tensorboard": {"histograms": Rhythm(500, "steps")},
    "wandb": {"mode": "offline"},
    "mlflow": {"tracking_uri": "sqlite:///{folder}/mlflow.db"},
}
"""What a hook needs beside its defaults to have something to do."""
BUDGETS = (None, "1%", "5%")
EPOCH_STEPS = 200


@dataclass
class Load(Task):
    """Layers of one width, gone through several times in the first half."""

    width: int = 64
    layers: int = 2
    half: int = 0
    """The step from which on they are gone through once."""

    def model(self) -> nn.Module:
        self.steps = 0
        return nn.Sequential(
            *(part for _ in range(self.layers) for part in (nn.Linear(self.width, self.width), nn.ReLU()))
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": TensorDataset(torch.randn(EPOCH_STEPS * 32, self.width))}

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        self.steps += 1
        output: Tensor = model(batch[0])
        for _ in range(0 if self.steps > self.half else 2):
            output = model(output)
        return output

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.mse_loss(output, batch[0])


MODELS: Mapping[str, Mapping[str, int]] = {"small": {"width": 64, "layers": 2}, "larger": {"width": 512, "layers": 4}}
STEPS = {"small": 16_000, "larger": 1_000}


class Probe(Hook):
    """Notes the processor's time at the end of each step, and how often a hook was called so far."""

    priority = Priority.LOWEST

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.noted: list[tuple[float, int]] = []
        self.loop: Loop | None = None

    def on_step(self, state: State) -> None:
        assert self.loop is not None
        calls = sum(
            call.made
            for some in self.loop.plan.calls.values()
            for call in some
            if call.name == self.hook and call.pace is not None
        )
        self.noted.append((process_time(), calls))


class Shares(NamedTuple):
    """What a hook took of the processor's time in each part of a run, how often it looked, and its pace at the end."""

    parts: tuple[float, ...]
    dearest_s: float
    """What the dearest look took."""
    owed_s: float
    """The most by which any stretch of the run has more than the budget."""
    calls: int
    every: int


def run(name: str, model: str, budget: str | None, steps: int) -> Shares:
    """One run with one hook."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            key: value.format(folder=folder) if isinstance(value, str) else value
            for key, value in SETTINGS.get(name, {}).items()
        }
        hook = HOOKS[name](**settings)
        hook.budget = Budget.parse(budget) if budget else None
        probe = Probe(name)
        experiment = Experiment(
            name="load",
            task="benchmarks.observation_budget:Load",
            steps=steps,
            batch_size=32,
            optimizer=Component(type="SGD", lr=0.01),
        )
        probe.loop = loop = Loop(
            Load(**MODELS[model], half=steps // 2),
            experiment,
            {name: hook, "probe": probe},
            RunContext(artifacts=Path(folder)),
        )
        for _ in loop.run():
            pass
        pace = next(iter(steered_paces(hook).values()))
        parts = [
            list(_spent(probe.noted, begin, end))
            for begin, end in pairwise((1, steps // 8, steps // 2, 5 * steps // 8, steps))
        ]
        shares = tuple(sum(longer for _, longer in part) / sum(seconds for seconds, _ in part) for part in parts)
        dearest_s = max(longer for part in parts for _, longer in part)
        owed_s = _most_owed(chain(*parts), hook.budget.share if hook.budget else 1.0)
        return Shares(shares, dearest_s, owed_s, probe.noted[-1][1], pace.count if isinstance(pace, Rhythm) else pace)


def _spent(noted: list[tuple[float, int]], begin: int, end: int) -> Iterator[tuple[float, float]]:
    """What each step of a part took, and how much of it a look, as looks are seen in the number of calls and epochs
    begin every so many steps."""
    spent = [
        (noted[at][0] - noted[at - 1][0], noted[at][1] > noted[at - 1][1], at % EPOCH_STEPS == 0)
        for at in range(begin, end)
    ]
    usual = {
        first: mean([seconds for seconds, looked, begins in spent if not looked and begins == first] or [0.0])
        for first in (False, True)
    }
    usual[True] = usual[True] or usual[False]
    for seconds, looked, begins in spent:
        yield seconds, seconds - usual[begins] if looked else 0.0


def _most_owed(spent: Iterable[tuple[float, float]], share: float) -> float:
    owed = most = 0.0
    for seconds, longer in spent:
        owed = max(0.0, owed + longer - share * seconds)
        most = max(most, owed)
    return most


def main(*names: str) -> None:
    torch.manual_seed(0)
    plan.perf_counter = budget_control.perf_counter = process_time
    paced = [name for name, cls in sorted(HOOKS.items()) if replaced_fields(cls)]
    for model, steps in STEPS.items():
        run("memory_stats", model, None, 2 * EPOCH_STEPS)
        rows = []
        for name, budget in product(names or paced, BUDGETS):
            shares = run(name, model, budget, steps)
            owed = f"{1000 * shares.owed_s:.1f}" if budget else "-"
            parts = (f"{100 * share:.2f}" for share in shares.parts)
            rows.append(
                (
                    f"{name}, {budget or 'default'}",
                    shares.calls,
                    shares.every,
                    *parts,
                    f"{1000 * shares.dearest_s:.1f}",
                    owed,
                )
            )
        columns = [
            "hook",
            "calls",
            "pace at the end",
            "% settling",
            "% settled",
            "% after the change",
            "% later",
            "ms, dearest look",
            "ms owed at most",
        ]
        print_table(f"{model} model, {steps} steps", columns, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
