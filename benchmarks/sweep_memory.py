"""Memory of the driver of a long sweep: a thousand trials of a task that hardly trains.

Every trial is one step, validated and reported once, and checkpointed as any trial is, two at a
time. Memory is read whenever another tenth of the trials has been begun. The claim: a trial leaves
nothing in the driver beyond what its row in the table of trials takes, and takes as long among a
thousand as at first.

    python -m benchmarks.sweep_memory [trials]
"""

import gc
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from benchmarks.timing import print_table
from orchestrator import Sweep, Task, sweep
from orchestrator.experiment.load import make_experiment

TENTHS = 10
EVERY_S = 0.2


@dataclass
class Trivial(Task):
    """Eight points on a line."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = torch.linspace(0, 1, 8).unsqueeze(1)
        return dict.fromkeys(("train", "val"), TensorDataset(points, 2 * points))

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.mse_loss(output, batch[1])


class Watch(Thread):
    """Reads this process's memory whenever another tenth of the trials has been begun."""

    def __init__(self, folder: Path, trials: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._each, self._over = folder, trials // TENTHS, Event()
        self._began, self._process = perf_counter(), psutil.Process()
        self.read: list[tuple[int, float, int]] = []
        """Trials begun, seconds since the start, resident bytes."""

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            begun = sum(1 for _ in self._folder.glob("*")) - 1
            if begun >= self._each * (len(self.read) + 1):
                self._take(begun)

    def _take(self, begun: int) -> None:
        gc.collect()
        self.read.append((begun, perf_counter() - self._began, self._process.memory_info().rss))

    def end(self) -> None:
        self._over.set()
        self.join()


def swept(folder: Path, trials: int) -> tuple[Sweep, list[tuple[int, float, int]]]:
    written = {
        "name": "many",
        "task": "benchmarks.sweep_memory:Trivial",
        "epochs": 1,
        "batch_size": 8,
        "sweep": {
            "metric": "val/loss",
            "mode": "min",
            "search": "random",
            "trials": trials,
            "max_concurrent": 2,
            "space": {"optimizer.lr": {"loguniform": [0.01, 1]}},
        },
    }
    watch = Watch(folder / "many/trials", trials)
    watch.start()
    done = sweep(make_experiment(written, [Path.cwd()]), folder)
    watch.end()
    return done, watch.read


def main(trials: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done, read = swept(Path(folder), trials)
        table = done.trials
        assert table["status"].tolist() == ["finished"] * trials
        row = int(table.memory_usage(deep=True).sum()) / trials
    rows = []
    for (begun, seconds, rss), (earlier, before_s, before) in zip(read[1:], read, strict=False):
        more = begun - earlier
        rows.append(
            (
                f"{begun:,}",
                f"{rss / 2**20:.0f}",
                f"{(rss - before) / more / 1024:.1f}",
                f"{(seconds - before_s) / more:.2f}",
            )
        )
    columns = ["trials begun", "MiB of the driver", "KiB more, each trial", "s, each trial"]
    print_table(f"The driver of {trials:,} trivial trials", columns, rows)
    (first, _, low), (last, _, high) = read[1], read[-1]
    print(
        f"\nFrom {first:,} trials on {(high - low) / (last - first) / 1024:.1f} KiB each; a row of the table of"
        f" trials is {row / 1024:.1f} KiB."
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
