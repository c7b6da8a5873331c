"""Runs written by hand, as ranks and drivers write them: every number in them is known."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.disk.attempts import rank_folder, write_attempt
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.experiment.load import to_yaml
from tests.tasks import described

NOBODY = 2**22 + 1
"""A process number that Linux gives to no process by default."""


def written_run(
    root: Path | str, name: str = "points", metadata: Mapping[str, Any] | None = None, **fields: Any
) -> RunFolder:
    """A run that has begun its first attempt, of epochs of 100 iterations."""
    folder = create_run(
        root,
        name,
        to_yaml(described(**{"epochs": 4, "batch_size": 8, **fields})),
        **(metadata or {}),
    )
    begun(folder)
    return folder


def begun(folder: RunFolder, world_size: int = 2) -> None:
    """Writes down that an attempt has begun, and what is known of it since."""
    write_attempt(
        folder.storage, replace(folder.begin_attempt(world_size=world_size), epoch_iterations=100)
    )


def rows_of(folder: RunFolder, stats: pd.DataFrame, attempt: int = 0) -> None:
    """Adds a table's rows to the files of its ranks."""
    for rank, own in stats.groupby("rank"):
        node = str(own["node"].iloc[0])
        recorder = Recorder(
            folder.storage,
            rank_folder(attempt, int(str(rank))),
            {"rank": rank, "node": node, "attempt": attempt},
        )
        for row in own.drop(columns=["rank", "node"]).to_dict("records"):
            recorder.append({str(name): value for name, value in row.items() if value == value})
        recorder.close()


def age(folder: RunFolder, seconds: float) -> Callable[[], float]:
    """A clock that stands still, by which the rows are so old."""
    now = time.time()
    for file in Path(str(folder)).glob("stats/*/*/*.arrow"):
        os.utime(file, (now - seconds, now - seconds))
    return lambda: now
