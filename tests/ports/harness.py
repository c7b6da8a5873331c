"""What a port and its raw loop share: data, the order of the samples, and the comparison of what
both have trained."""

import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hooks import Hook, State
from orchestrator import Experiment, Run
from orchestrator.testing.differences import find_difference

SEED = 0
Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Ranks:
    """The rank that a raw loop is, and what it computes in."""

    rank: int = 0
    count: int = 1
    dtype: torch.dtype | None = None

    def seeded(self, make: Callable[[], Model]) -> Model:
        """Make the model after the seed, alike on all ranks; training draws from another seed on
        each."""
        seed_all(SEED)
        model = make()
        seed_all(SEED + self.rank)
        return model

    def shared(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if self.count > 1 else model

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", self.dtype, enabled=self.dtype is not None)

    def batches(self, dataset: Any, batch_size: int, epoch: int | None = None) -> DataLoader[Any]:
        """Return this rank's batches: shuffled for an epoch, or in order."""
        own_generator = torch.Generator()
        if epoch is None:
            places = range(self.rank, len(dataset), self.count)
            return DataLoader(
                torch.utils.data.Subset(dataset, places), batch_size, generator=own_generator
            )
        sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, self.count, self.rank, seed=SEED
        )
        sampler.set_epoch(epoch)
        return DataLoader(dataset, batch_size, sampler=sampler, generator=own_generator)

    def mean(self, batches: Iterable[tuple[float, int]]) -> float:
        """Return the mean over the samples of all ranks; of each batch there is the sum and the
        number of samples."""
        total, count = 0.0, 0
        for batch_sum, samples in batches:
            total, count = total + batch_sum, count + samples
        sums = torch.tensor([total, count], dtype=torch.float64)
        if self.count > 1:
            dist.all_reduce(sums)
        return float(sums[0] / sums[1])


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


@dataclass
class Trained:
    """What a training has come to."""

    model: Mapping[str, Any]
    optimizer: Any
    rows: dict[str, list[float]] = field(default_factory=dict)
    """Columns of the training's rows: a value for each iteration."""
    reports: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each report."""

    def record(self, **columns: float) -> None:
        for name, value in columns.items():
            self.rows.setdefault(name, []).append(value)


def check(run: Run, expected: Trained, rank: int = 0) -> None:
    """Assert that a run that is over equals the raw loop of a rank bit for bit, with each row
    exactly once."""
    rows = run.stats[run.stats["rank"] == rank].sort_values("iteration")
    is_train = rows["phase"] == "train"
    for _, counted in [
        ("train", rows[is_train]),
        *rows[~is_train].groupby(["phase", "epoch"], observed=True),
    ]:
        assert counted["iteration"].tolist() == list(range(1, len(counted) + 1))
    rows = rows[is_train]
    assert not find_difference({name: rows[name].tolist() for name in expected.rows}, expected.rows)
    if rank:
        return  # reports and checkpoints are the master's
    reports = [
        {name: report.get(name) for name in wanted}
        for report, wanted in zip(run.reports(), expected.reports, strict=True)
    ]
    assert not find_difference(reports, expected.reports)
    weights = {
        name: tensor for name, tensor in run.weights("last").items() if name in expected.model
    }
    assert not find_difference(weights, dict(expected.model))
    saved = torch.load(Path(run.checkpoint("last")) / "optimizer.pt", weights_only=True)
    assert not find_difference(saved["optimizer"], expected.optimizer)


@dataclass
class Fails(Hook):
    """Fails once at each of its places, which are `train 1 2, val 2 0`: phase, epoch and iterations
    before it."""

    places: str = ""
    marks: str = ""
    """A folder that remembers the failures."""
    is_killed: bool = False
    """Whether the process is killed instead."""

    observes: ClassVar[bool] = True

    def on_batch(self, state: State) -> None:
        place = f"{state.phase} {state.epoch} {state.phase_iteration}"
        mark = Path(self.marks, place)
        if place not in self.places.split(", ") or mark.exists():
            return
        mark.touch()
        if self.is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError(f"failed on purpose: {place}")


@dataclass
class Port:
    """An experiment and the loop that it is a port of."""

    experiment: Mapping[str, Any]
    raw: Callable[[Ranks], Trained]
    places: str = "train 1 2, val 1 1"
    """Where it is made to fail."""

    def experiment_with(self, hooks: Mapping[str, Any] | None = None, **fields: Any) -> Experiment:
        """Return the experiment with more hooks, and with other fields."""
        return Experiment(
            **{
                **self.experiment,
                **fields,
                "hooks": {**self.experiment.get("hooks", {}), **(hooks or {})},
            }
        )


@cache
def digits(first: int, last: int) -> tuple[Tensor, Tensor]:
    """Return some of scikit-learn's digits: images (N, 1, 8, 8) in [0, 1], and labels (N,)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[first:last]).float().view(-1, 1, 8, 8) / 16, torch.tensor(
        labels[first:last]
    )


def digit_sets(train: int = 160, val: int = 50) -> dict[str, TensorDataset]:
    return {
        "train": TensorDataset(*digits(0, train)),
        "val": TensorDataset(*digits(train, train + val)),
    }
