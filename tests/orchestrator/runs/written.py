"""Runs written by hand, as ranks and drivers write them: every number in them is known."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.disk.attempts import rank_folder, write_attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.strict_json import format_json, parse_json
from tests.tasks import described

NOBODY = 2**22 + 1
"""A process number that Linux gives to no process by default."""


def new_run(
    storage: str | Path | Storage,
    name: str,
    experiment: str,
    source: ExperimentSource | None = None,
    code: str = "",
    **entries: Any,
) -> RunFolder:
    """Create a run with other entries of its `run.json`."""
    folder = create_run(storage, name, experiment, source=source, code=code)
    return change(folder, **entries)


def change(folder: RunFolder, **entries: Any) -> RunFolder:
    """Change entries of `run.json`, by the names and values that they have in the file."""
    before = folder.read_metadata().record()
    assert entries.keys() <= before.keys()
    written = parse_json(format_json({**before, **entries}).encode())
    folder.run_file.replace(RunMetadata.read(written))
    return folder


def written_run(
    root: Path | str, name: str = "points", metadata: Mapping[str, Any] | None = None, **fields: Any
) -> RunFolder:
    """A run that has begun its first attempt, of epochs of 100 iterations."""
    folder = new_run(
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
