"""Compaction: every row stays, once, whatever is killed meanwhile."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hooks.position import Stage
from orchestrator.disk.rows import compaction, part_rewriter
from orchestrator.disk.rows.compaction import compact, finish_compaction, is_compacted
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.storage import Storage
from orchestrator.tables.frames import load
from orchestrator.tables.hook_costs import load_costs
from tests.orchestrator.runs.written import new_run
from tests.orchestrator.tables.test_frames import ATTEMPTS, ROWS, attempt, keys, record, row

COSTS = [
    {
        "iteration": 1,
        "step": 1,
        "stage": 0,
        "hook": "ema",
        "event": "on_update",
        "calls": 2,
        "seconds": 0.5,
    }
]


@pytest.fixture(params=["a run of few rows", "one of many"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a run has too many rows for one file; then its ranks write segments as they go."""
    if request.param == "one of many":
        monkeypatch.setattr(compaction, "JOINED_ROWS", 3)
        monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", 2)
    return request.param == "one of many"


def everything(storage: Storage) -> tuple[pd.DataFrame, pd.DataFrame, list[Any]]:
    """What counts, what hooks cost, and every row in any order."""
    rows = (
        open_recorded(storage, "rows")
        .read()
        .select(["rank", "attempt", "phase", "iteration"])
        .to_pylist()
    )
    return (
        load(storage, ATTEMPTS),
        load_costs(storage, ATTEMPTS),
        sorted(tuple(one.values()) for one in rows),
    )


def same(storage: Storage, before: tuple[pd.DataFrame, pd.DataFrame, list[Any]]) -> None:
    stats, costs, rows = everything(storage)
    pd.testing.assert_frame_equal(stats, before[0])
    pd.testing.assert_frame_equal(costs, before[1])
    assert rows == before[2]


def test_compaction_keeps_every_row(tmp_path: Path, many: bool) -> None:
    storage = Storage(tmp_path)
    record(storage, ROWS, COSTS)
    before = everything(storage)
    assert len(before[2]) == len(ROWS)
    assert before[1]["calls"].tolist() == [4, 4]
    for _ in range(2):
        compact(storage, ATTEMPTS)
        same(storage, before)
        assert not list(tmp_path.glob("**/rows-*.arrow"))
        assert storage.exists("stats.parquet") != many
        assert len({file.parent for file in tmp_path.glob("stats/*/rank=*/rows-*.parquet")}) == (
            4 if many else 0
        )


@pytest.mark.parametrize(
    ("status", "is_finished"), [("finished", True), ("interrupted", False), ("running", False)]
)
def test_a_reader_finishes_the_compaction_of_a_complete_run(
    tmp_path: Path, status: str, is_finished: bool
) -> None:
    folder = new_run(tmp_path, "run", "", status=status)
    record(folder.storage, ROWS)
    finish_compaction(folder)
    assert is_compacted(folder.storage) == is_finished
    assert folder.storage.exists("stats.parquet") == is_finished


def test_a_reader_that_cannot_finish_the_compaction_logs_why_and_leaves_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = new_run(tmp_path, "run", "", status="finished")
    record(folder.storage, ROWS)
    before = sorted(tmp_path.glob("**/rows-*.arrow"))
    monkeypatch.setattr(compaction, "compact", Mock(side_effect=PermissionError("read-only")))
    with caplog.at_level("DEBUG", "hookyard"):
        finish_compaction(folder)
    assert sorted(tmp_path.glob("**/rows-*.arrow")) == before != []
    assert f"the rows of {folder} stay as its ranks wrote them: read-only" in caplog.text


def test_one_file_is_plain_parquet_in_order(tmp_path: Path) -> None:
    record(Storage(tmp_path), ROWS)
    compact(Storage(tmp_path), ATTEMPTS)
    plain = pq.ParquetFile(tmp_path / "stats.parquet").read()
    kinds = {str(kind) for kind in plain.schema.types}
    assert kinds <= {"int16", "int32", "int64", "double", "string", "bool"}
    valid = plain.filter(pc.invert(plain["superseded"]))
    order = valid.select(["phase", "iteration", "rank"]).to_pylist()
    expected = [*product(["train"], range(1, 8), (0, 1)), ("val", 1, 0), ("val", 1, 1)]
    assert [tuple(row.values()) for row in order] == expected


def test_parquet_files_mark_superseded_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks' files from before the later attempt, files compacted at the end, and one joined before
    the resume."""
    storage = Storage(tmp_path)
    for least in (2, 100):
        monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", least)
        record(storage, [one for one in ROWS if (one["rank"] == 0) == (least == 2)])
    monkeypatch.setattr(compaction, "JOINED_ROWS", 3)
    compact(storage, ATTEMPTS)
    partitions = pq.read_table(tmp_path / "stats").to_pandas()
    assert len(partitions) == len(ROWS)
    superseded = keys(partitions[partitions["superseded"]], "rank", "attempt", "iteration")
    assert sorted(superseded) == [*product((0, 1), [0], (4, 5))]
    (tmp_path / "joined").mkdir()
    joined = Storage(tmp_path / "joined")
    monkeypatch.setattr(compaction, "JOINED_ROWS", 100)
    record(joined, ROWS)
    compact(joined, ATTEMPTS)
    monkeypatch.setattr(compaction, "JOINED_ROWS", 3)
    again = [*ATTEMPTS, attempt(2, 6, 6, Stage.TRAIN)]
    record(joined, [row(2, "train", 0, 7, 7, rank) for rank in (0, 1)])
    compact(joined, again)
    plain = pq.read_table(joined.local / "stats.parquet").to_pandas()
    superseded = plain[plain["superseded"] & (plain["attempt"] == 1)]
    assert {*keys(superseded, "phase", "iteration")} == {("train", 7), ("val", 1)}
    assert keys(load(joined, again), "iteration", "rank") == [*product(range(1, 8), (0, 1))]


class Killed(BaseException):
    """A process that is gone: it does nothing to files any more, not even clear up."""


def killed_after(
    operations: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> bool:
    """Lets work do so many operations on files and no more; whether it was over before."""
    left = [operations]

    def until_killed(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, until_killed(getattr(os, name)))
        patch.setattr(pq.ParquetWriter, "write_table", until_killed(pq.ParquetWriter.write_table))
        try:
            work()
        except Killed:
            return False
    return True


def test_kill_at_any_file_operation_keeps_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    operations = 0
    has_ended = False
    record(Storage(recorded), [one for one in ROWS if one["rank"] == 0], COSTS)
    before = everything(Storage(recorded))
    while not has_ended:
        storage = Storage(shutil.copytree(recorded, tmp_path / str(operations)))
        has_ended = killed_after(operations, monkeypatch, partial(compact, storage, ATTEMPTS))
        same(storage, before)
        compact(storage, ATTEMPTS)
        same(storage, before)
        assert not list(storage.local.glob("**/rows-*.arrow"))
        operations += 1
    assert operations > 6
