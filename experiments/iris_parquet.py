"""Flowers from a Parquet file, which Ray Data reads and prepares beside the training."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
from sklearn.datasets import load_iris
from torch import Tensor, nn
from torch.nn import functional

from orchestrator import Task

MEASUREMENTS = ("sepal_length", "sepal_width", "petal_length", "petal_width")


def write_flowers(folder: Path) -> None:
    """Write the flowers, 120 to train on and 30 to validate with, as Parquet files with a row for
    each."""
    features, species = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(species))
    folder.mkdir(parents=True, exist_ok=True)
    for phase, places in (("train", order[:120]), ("val", order[120:])):
        columns = {name: features[places, column] for column, name in enumerate(MEASUREMENTS)}
        # Ranks may write at once: a file is there whole or not at all.
        handle, unfinished = tempfile.mkstemp(dir=folder)
        os.close(handle)
        pq.write_table(pa.table({**columns, "species": species[places]}), unfinished)
        os.replace(unfinished, folder / f"{phase}.parquet")


def prepare(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch of rows with the measurements as one array around 0, in a task of Ray."""
    features = np.stack([batch[name] for name in MEASUREMENTS], axis=1).astype(np.float32)
    return {
        "features": (features - [5.8, 3.1, 3.8, 1.2]).astype(np.float32),
        "species": batch["species"],
    }


@dataclass
class IrisParquet(Task):
    """Tells the species of a flower."""

    folder: str = ""
    """Where `train.parquet` and `val.parquet` are, for all nodes alike, or a URL; by default they
    are written on each node."""
    hidden: int = 16
    """Units of the hidden layer."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(len(MEASUREMENTS), self.hidden), nn.ReLU(), nn.Linear(self.hidden, 3)
        )

    def data(self) -> Mapping[str, Any]:
        folder = self.folder or f"{tempfile.gettempdir()}/hookyard-iris"
        if not self.folder:
            write_flowers(Path(folder))
        train, val = (
            ray.data.read_parquet(f"{folder}/{phase}.parquet") for phase in ("train", "val")
        )
        return {
            "train": train.random_shuffle().map_batches(prepare),
            "val": val.map_batches(prepare),
        }

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        output: Tensor = model(batch["features"])
        return output

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch["species"])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (output.argmax(dim=1) == batch["species"]).float()}
