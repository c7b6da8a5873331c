"""A sweep in one process that dies at each of its writes to disk in turn, and is resumed each time.

Two trials of a small task with batch norm, dropout and averaged weights, a checkpoint every three
steps. The process ends as with SIGKILL (nothing is tidied up) before, within and after each file is
written, renamed, deleted or added to. What has to hold after `resume`: the same trials with the
same values, in every report the same numbers, bit by bit, and every row of the tables once. It
needs no Ray; `benchmarks.sweep_kills` kills the processes of sweeps on Ray.

    python -m benchmarks.sweep_crashes [every Nth write]

Ends with 1 where something does not hold.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from benchmarks.timing import print_table
from orchestrator import HookyardError, Sweep, Task, resume_sweep, sweep
from orchestrator.experiment.load import make_experiment
from orchestrator.storage import Storage

KEPT = ("epoch", "step", "samples", "train/loss", "val/loss", "val/accuracy")
KEY = ["trial", "rank", "phase", "epoch", "iteration"]


@dataclass
class Points(Task):
    """Tells points inside a circle from points outside."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
        inside = (points.norm(dim=1) < 1).long()
        return {
            "train": TensorDataset(points[:60], inside[:60]),
            "val": TensorDataset(points[60:], inside[60:]),
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (output.argmax(1) == batch[1]).float()}


EXPERIMENT = {
    "name": "points",
    "task": "benchmarks.sweep_crashes:Points",
    "epochs": 2,
    "batch_size": 8,
    "hooks": {
        "ema": {},
        "console": None,
        "checkpoint": {"every": "3 steps", "keep": 1, "best": "val/accuracy"},
    },
    "sweep": {
        "metric": "val/accuracy",
        "mode": "max",
        "search": "grid",
        "space": {"optimizer.lr": {"grid": [0.1, 0.01]}},
    },
}


class Writes:
    """Counts the writes, and ends the process at a given number after recording the place."""

    def __init__(self) -> None:
        self.count, self.last, self.word = 0, 0, Path()
        for name in ("append", "rename", "delete"):
            setattr(Storage, name, self._around(getattr(Storage, name)))
        Storage.create = self._within(Storage.create)

    def _count(self, where: str) -> None:
        self.count += 1
        if self.count == self.last:
            self.word.write_text(where)
            os._exit(9)

    def _around(self, method: Callable[..., None]) -> Callable[..., None]:
        def counted(storage: Storage, name: str, *arguments: str) -> None:
            self._count(f"before {method.__name__} of {name}")
            method(storage, name, *arguments)
            self._count(f"after {method.__name__} of {name}")

        return counted

    def _within(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def counted(storage: Storage, name: str) -> Iterator[IO[bytes]]:
            self._count(f"before {name}")
            with method(storage, name) as file:
                yield file
                file.flush()
                self._count(f"within {name}")
            self._count(f"after {name}")

        return counted


def swept(folder: Path, name: str) -> Sweep:
    with redirect_stderr(StringIO()):
        return sweep(make_experiment(EXPERIMENT, [Path.cwd()]), folder, name, local=True)


def crashed(writes: Writes, folder: Path, name: str, at: int) -> str:
    """Runs a sweep in a process of its own that ends at its write number `at`; returns where that
    was."""
    writes.word = folder / f"{name}.txt"
    child = os.fork()
    if child == 0:
        writes.count, writes.last = 0, at
        swept(folder, name)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 9:
        raise RuntimeError(
            f"the sweep that was to end at write {at} ended with {os.waitstatus_to_exitcode(status)}"
        )
    return writes.word.read_text()


def results(done: Sweep) -> dict[str, Any]:
    """Return the results that must not depend on the number of restarts."""
    stats = done.stats
    return {
        "status": (done.status, done.trials["status"].tolist()),
        "values": [run.folder.read_metadata().trial_settings.values for run in done.runs],
        "reports": [
            [{name: report[name] for name in KEPT} for report in run.metrics.to_dict("records")]
            for run in done.runs
        ],
        "rows": (len(stats), int(stats.duplicated(KEY).sum())),
    }


def resumed(folder: Path, calm: Mapping[str, Any]) -> str:
    """Resume the sweep, and return the violated promises; before its first file there is nothing to
    resume."""
    if not (folder / "run.json").exists():
        return "no sweep yet"
    try:
        with redirect_stderr(StringIO()):
            done = results(resume_sweep(folder))
    except HookyardError as error:
        return f"{type(error).__name__}: {error}"
    return ", ".join(f"{name} differ" for name in calm if done[name] != calm[name]) or "the same"


def main(every: int = 1) -> int:
    torch.set_num_threads(1)
    writes, outcomes = Writes(), dict[str, Counter[str]]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        calm, total = results(swept(folder, "undisturbed")), writes.count
        for at in range(1, total + 1, every):
            where = crashed(writes, folder, f"sweep-{at}", at)
            outcome = resumed(folder / f"sweep-{at}", calm)
            outcomes.setdefault(_kind(where), Counter())[outcome] += 1
    rows = [
        (
            kind,
            sum(done.values()),
            "; ".join(f"{outcome}: {count}" for outcome, count in done.items()),
        )
        for kind, done in sorted(outcomes.items())
    ]
    print_table(
        f"A sweep that ends at its writes, every {every} of {total}",
        ["write", "ends", "resumed, to undisturbed"],
        rows,
    )
    return (
        1
        if any(
            outcome not in ("the same", "no sweep yet")
            for done in outcomes.values()
            for outcome in done
        )
        else 0
    )


def _kind(where: str) -> str:
    """The file, without the numbers in its name."""
    name = where.rsplit(" ", 1)[-1].rsplit("/", 1)[-1].lstrip(".")
    return name.split("-")[0] + "-*" if "-" in name else name


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
