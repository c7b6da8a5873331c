"""A race over seeds beside Optuna's WilcoxonPruner and ASHA: how often the winner of full training
wins, and for which share of its steps.

The claim: the same winner in at least 95 of 100 sweeps, for about half of the steps. Full training
runs each configuration with each seed to the end; its winner has the best mean. Families of curves
are drawn by a fixed seed: how good a configuration becomes, how fast, and what differs from seed to
seed. For the digits a pool of trainings is made once, with plain torch, and each sweep is some of
its configurations with some of its seeds. All contestants get the same curves, report by report:

- the race of a sweep (`orchestrator.sweeps.search.race`), one trial at a time and eight;
- Optuna's WilcoxonPruner with its defaults, one configuration after the other and seed by seed,
  each trained to its end, as its documentation has it; its winner has the best mean of the trials
  that were not pruned;
- Ray Tune's ASHA as `--local` asks it, told the mean of repeats; its winner has the best mean of
  what its trials reached.

    python -m benchmarks.race [sweeps]
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optuna
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.timing import print_table
from experiments.digits import Digits
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.search.race import RacingTrials

Curves = NDArray[np.float64]
"""Metric of each report, where more is better: (configurations, seeds, reports)."""
REPORTS = 20
POOL, POOL_SEEDS, EPOCHS = 24, 10, 8


def curves(random: np.random.Generator, configurations: int, seeds: int, kind: str) -> Curves:
    """Curves that saturate, 0.15 between the best and the worst in the mean and 0.01 from seed to
    seed, but for what `kind` says."""
    ends, pace = random.uniform(0.80, 0.95, configurations), random.uniform(1, 6, configurations)
    noise = random.normal(0, 0.01, (configurations, seeds))
    if kind == "crossing":  # the better it becomes the slower it is
        pace = 1 + 9 * np.argsort(np.argsort(ends)) / (configurations - 1)
    if kind == "noisier where worse":
        noise *= 0.3 + 30 * (ends.max() - ends)[:, None]
    if kind == "nearly equal":
        ends = random.normal(0.9, 0.004, configurations)
    if kind == "heavy tails":
        noise = 0.007 * random.standard_t(2, noise.shape)
    if kind == "a seed in 20 goes wrong":
        noise = 0.6 * noise - 0.2 * (random.random(noise.shape) < 0.05)
    of_seed = random.normal(0, 0.05 if kind == "good and bad seeds" else 0.01, seeds)
    height = (ends[:, None] + noise + of_seed)[:, :, None]
    rise = 0.7 * np.exp(-np.arange(1, REPORTS + 1) / pace[:, None])[:, None, :]
    return height - rise + random.normal(0, 0.003, (configurations, seeds, REPORTS))


KINDS = (
    "plain",
    "crossing",
    "noisier where worse",
    "heavy tails",
    "a seed in 20 goes wrong",
    "good and bad seeds",
    "nearly equal",
)


def digits_pool() -> Curves:
    """Accuracy after each epoch of digits, for configurations drawn at random and seeds."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    random, task = np.random.default_rng(0), Digits()
    data = task.data()
    accuracies = np.empty((POOL, POOL_SEEDS, EPOCHS))
    for configuration in range(POOL):
        rate, momentum = 10 ** random.uniform(-3, -0.3), random.choice([0.0, 0.9])
        width, decay = int(random.choice([4, 8, 16])), 10 ** random.uniform(-5, -2)
        for seed in range(POOL_SEEDS):
            torch.manual_seed(seed)
            model = Digits(width=width).model()
            optimizer = torch.optim.SGD(
                model.parameters(), lr=rate, momentum=momentum, weight_decay=decay
            )
            accuracies[configuration, seed] = [*_epochs(model, optimizer, data)]
    return accuracies


def _epochs(model: nn.Module, optimizer: Any, data: Any) -> Iterator[float]:
    images, labels = data["train"].tensors
    for _ in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(labels)).split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            yield float(
                (model(data["val"].tensors[0]).argmax(1) == data["val"].tensors[1]).float().mean()
            )


# Contestants: which configuration wins, and how many steps it took


def settings(curves: Curves, scheduler: Any) -> SweepSettings:
    space = {"a": {"grid": [*range(len(curves))]}}
    return SweepSettings.model_validate(
        {
            "metric": "m",
            "mode": "max",
            "search": "grid",
            "repeats": curves.shape[1],
            "scheduler": scheduler,
            "space": space,
        }
    )


def race(curves: Curves, at_once: int) -> tuple[int, int]:
    """Race with a number of trials at a time, which report in turn."""
    run, steps, under_way = (
        RacingTrials(settings(curves, "race"), 0, {}),
        0,
        dict[int, Iterator[float]](),
    )
    stopped: set[int] = set()
    while True:
        while len(under_way) < at_once and (chosen := run.suggest()) is not None:
            under_way[chosen["number"]] = iter(
                curves.reshape(-1, curves.shape[2])[chosen["number"]]
            )
        if not under_way:
            break
        for number, curve in [*under_way.items()]:
            value = (
                None
                if number in stopped or number // curves.shape[1] in run.eliminated
                else next(curve, None)
            )
            if value is None:
                del under_way[number]
                run.record_end(number, {})
                continue
            steps += 1
            if run.record_report(number, {"m": value}):
                stopped.add(number)
    contenders = set(range(len(curves))) - run.eliminated.keys()
    return max(contenders, key=lambda configuration: curves[configuration].max(1).mean()), steps


def wilcoxon(curves: Curves) -> tuple[int, int]:
    """Train one configuration after the other; the pruner sees the result of each seed."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.WilcoxonPruner())
    steps, means = 0, {}
    for configuration, results in enumerate(curves.max(2)):
        trial, seen = study.ask(), []
        for seed, result in enumerate(results):
            steps += curves.shape[2]
            seen.append(float(result))
            trial.report(seen[-1], seed)
            if trial.should_prune():
                break
        else:
            means[configuration] = float(np.mean(seen))
        # The mean of the seeds so far, as the pruner's documentation has it.
        study.tell(trial, float(np.mean(seen)))
    return max(means, key=lambda configuration: means[configuration]), steps


def asha(curves: Curves, grace_period: int) -> tuple[int, int]:
    """Train one trial after the other."""
    sweep = settings(curves, {"type": "asha", "grace_period": grace_period})
    pruner = Pruner.make(sweep, {})
    assert pruner is not None
    reached = []
    steps = 0
    for number, curve in enumerate(curves.reshape(-1, curves.shape[2])):
        length = 1
        while length < len(curve):
            if pruner.should_stop(number, length, {"m": curve[length - 1]}):
                break
            length += 1
        else:
            pruner.should_stop(number, length, {"m": curve[-1]})
        reached.append(curve[:length].max())
        steps += length
    return int(np.reshape(reached, curves.shape[:2]).mean(1).argmax()), steps


def row(name: str, make: Callable[[np.random.Generator], Curves], sweeps: int) -> list[str]:
    random, comparisons = np.random.default_rng(1), []
    for _ in range(sweeps):
        drawn = make(random)
        means = drawn.max(2).mean(1)
        outcomes = [race(drawn, 1), race(drawn, 8), wilcoxon(drawn), asha(drawn, 1), asha(drawn, 5)]
        # Accuracies come in steps, so that two may have the same mean.
        comparisons.append(
            [
                (means[winner] >= means.max() - 1e-12, steps / drawn.size)
                for winner, steps in outcomes
            ]
        )
    same, share = np.moveaxis(np.array(comparisons, dtype=float), 2, 0)
    cells = [
        f"{100 * own:.0f} %, {100 * part:.0f} %"
        for own, part in zip(same.mean(0), share.mean(0), strict=True)
    ]
    return [name, " x ".join(map(str, drawn.shape)), *cells]


def main(sweeps: int = 100) -> None:
    """Prints for each family the share of sweeps with the same winner, and the share of steps."""
    rows = []
    pool = digits_pool()

    def draw_from_pool(random: np.random.Generator) -> Curves:
        return pool[random.choice(POOL, 10, replace=False)][
            :, random.choice(POOL_SEEDS, 5, replace=False)
        ]

    rows.append(row("digits", draw_from_pool, sweeps))
    for configurations, seeds in ((10, 5), (20, 5), (10, 3)):
        for kind in KINDS if (configurations, seeds) == (10, 5) else KINDS[:2]:
            rows.append(
                row(
                    kind,
                    lambda random, c=configurations, s=seeds, kind=kind: curves(random, c, s, kind),
                    sweeps,
                )
            )
    title = f"Share of {sweeps} sweeps with the winner of full training, and share of its steps"
    print_table(
        title,
        (
            "curves",
            "configurations x seeds x reports",
            "race",
            "race, 8 at a time",
            "WilcoxonPruner",
            "asha",
            "asha, grace_period 5",
        ),
        rows,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
