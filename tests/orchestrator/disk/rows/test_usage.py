"""What a run took, by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from hooks.position import Position
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.recorded_files import COMPACTED, open_parquet
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.rows.source import Source
from orchestrator.disk.rows.usage import compute_usage, read_stored_usage
from orchestrator.disk.rows.valid_rows import open_valid_rows
from orchestrator.storage import Storage
from orchestrator.tables.query import Rows

ROWS = pd.DataFrame(
    {
        "rank": [0, 0, 1, 1, 0],
        "phase": ["train", "train", "train", "train", "val"],
        "step_s": [1.0, 3.0, 2.0, 4.0, 100.0],
        "data_wait_s": [0.5, 0.5, 1.0, 0.5, 50.0],
        "batch_size": [8, 8, 8, 4, 9],
        "rss_bytes": [10, None, 30, None, 20],
        "cuda_peak_allocated_bytes": [5, None, None, 7, None],
        "gpu_utilization_percent": [50.0, None, 90.0, None, None],
    }
)


def test_usage_matches_a_hand_calculation() -> None:
    """Two ranks: 4 s and 6 s of training, 28 samples; evaluation is no training but its memory
    counts."""
    assert compute_usage(Rows.wrap(ROWS).source) == {
        "ranks": 2,
        "step_s": 2.5,
        "train_s": 6.0,
        "data_wait_share": 0.25,
        "samples_per_s": pytest.approx(28 / 6),
        "process_peak_rss_bytes": 30,
        "peak_allocated_bytes": 7,
        "gpu_utilization_percent": 70,
    }


def test_usage_of_several_batches_is_that_of_pandas() -> None:
    """A third of the values is missing; waiting counts beside the time of the iterations in which
    it was measured."""
    random = np.random.default_rng(0)
    names = ["step_s", "data_wait_s", "batch_size", "rss_bytes", "gpu_power_w"]
    rows = pd.DataFrame(random.random((90, 5)), columns=names).where(random.random((90, 5)) > 1 / 3)
    rows = rows.assign(rank=random.integers(3, size=90), phase=random.choice(["train", "val"], 90))
    source = Source(
        ds.dataset(pa.concat_tables(pa.table(rows[first : first + 40]) for first in (0, 40, 80)))
    )
    training = rows[rows["phase"] == "train"]
    train_s = training.groupby("rank")["step_s"].sum().max()
    assert compute_usage(source) == pytest.approx(
        {
            "ranks": 3,
            "step_s": training["step_s"].median(),
            "train_s": train_s,
            "data_wait_share": training["data_wait_s"].sum()
            / training.dropna(subset="data_wait_s")["step_s"].sum(),
            "samples_per_s": training["batch_size"].sum() / train_s,
            "process_peak_rss_bytes": rows["rss_bytes"].max(),
            "gpu_power_w": rows["gpu_power_w"].mean(),
        }
    )


def test_missing_columns_give_no_numbers() -> None:
    timed = Rows.wrap(ROWS[["rank", "phase", "step_s"]])
    assert compute_usage(timed.source) == {"ranks": 2, "step_s": 2.5, "train_s": 6.0}
    assert compute_usage(Rows.wrap(ROWS[["rank", "phase"]]).source) == {"ranks": 2}
    assert compute_usage(Rows.wrap(ROWS[:0]).source) == {"ranks": 0}


def test_joined_file_stores_usage_without_superseded_rows(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for attempt, step_s, iterations in ((0, 8.0, (1, 2)), (1, 2.0, (2,))):
        recorder = Recorder(
            storage,
            f"stats/attempt={attempt}/rank=0",
            {"rank": 0, "node": "here", "attempt": attempt},
        )
        for iteration in iterations:
            place = {
                "phase": "train",
                "epoch": 0,
                "iteration": iteration,
                "step": iteration,
                "samples": iteration,
            }
            recorder.append({**place, "step_s": step_s, "batch_size": 1})
        recorder.close()
    begun = [Attempt(0), Attempt(1, position=Position(iteration=1, samples=1))]
    compact(storage, begun)
    with open_parquet(storage, COMPACTED["rows"]) as parquet:
        kept = read_stored_usage(parquet, begun)
        assert read_stored_usage(parquet, [*begun, Attempt(2)]) is None
    assert kept == compute_usage(open_valid_rows(storage, begun))
    assert kept == {"ranks": 1, "step_s": 5.0, "train_s": 10.0, "samples_per_s": 0.2}


def test_file_without_stored_usage_gives_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"rank": [0]}), tmp_path / "stats.parquet")
    with open_parquet(Storage(tmp_path), "stats.parquet") as parquet:
        assert read_stored_usage(parquet, []) is None
