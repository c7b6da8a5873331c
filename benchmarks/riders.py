"""Eight decays of the averaged weights that ride on one training, beside one trial and beside eight that train.

The claim: eight decays cost at most 2 times one trial where training is 10 times its validation. What counts is processor time, in one
process with one thread, without imports; contestants take turns. An epoch of the network is seconds, so that its training is most of a trial; of the
digits', which are as `make demo` sweeps them but on one rank, it is hundredths of one, and each trial's checkpoints and folder cost as much.

    python -m benchmarks.riders [rounds]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from benchmarks.timing import print_table, ratio
from orchestrator import Task, sweep
from orchestrator.config.load import experiment_from_dict, load_experiment

DECAYS = [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999]
SWEEP = {"metric": "val/loss", "mode": "min", "search": "grid"}


@dataclass
class Layers(Task):
    """A perceptron of 0.3 million weights on random points, whose training takes about 10 times as long as its validation."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = torch.randn(127_500, 64, generator=torch.Generator().manual_seed(0))
        labels = points[:, :10].argmax(dim=1)
        return {"train": TensorDataset(points[:100_000], labels[:100_000]), "val": TensorDataset(points[100_000:], labels[100_000:])}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])


def layers(settings: Mapping[str, Any]) -> Any:
    written = {"name": "layers", "task": "benchmarks.riders:Layers", "epochs": 1, "batch_size": 128, "optimizer": {"type": "SGD", "lr": 0.05}}
    return experiment_from_dict({**written, "hooks": {"ema": {}}, "sweep": {**SWEEP, **settings}})


def digits(settings: Mapping[str, Any]) -> Any:
    experiment = load_experiment("experiments/digits.yaml", ["workers.count=1"]).source.written
    return experiment_from_dict({**experiment, "workers": {"count": 1}, "sweep": {**SWEEP, **settings}})


def trained(make: Any, decays: list[float], **settings: Any) -> tuple[float, float]:
    """The processor's seconds that a sweep over decays takes, and how many times as long as its validation the training takes."""
    experiment = make({"space": {"hooks.ema.decay": {"grid": decays}}, **settings})
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        began = process_time()
        done = sweep(experiment, folder, local=True)
        seconds = process_time() - began
        assert set(done.trials["status"]) == {"finished"}
        spent = done.runs[0].load_stats(["phase", "step_s"]).groupby("phase", observed=True)["step_s"].sum()
    return seconds, float(spent["train"] / spent["val"])


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    for name, make in {"training 10 times its validation": layers, "the digits": digits}.items():
        contestants = {"one trial": (DECAYS[:1], {}), "8 decays, riding": (DECAYS, {}), "8 decays, each trained": (DECAYS, {"riders": False})}
        took: dict[str, list[float]] = {contestant: [] for contestant in contestants}
        shares = []
        for number in range(rounds + 1):
            for contestant, (decays, settings) in contestants.items():
                seconds, share = trained(make, decays, **settings)
                if number:  # the first round is for what is set up once
                    took[contestant].append(seconds)
                    shares.append(share)
        rows = [(contestant, f"{median(times):.2f}", f"{ratio(times, took['one trial']):.2f}") for contestant, times in took.items()]
        title = f"Eight decays: {name} (training to validation {median(shares):.1f}; {rounds} rounds, in turns)"
        print_table(title, ("", "processor s, median", "to one trial"), rows)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
