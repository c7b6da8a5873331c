import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.rows import part_rewriter, parts
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.recorded_files import parse_recorded_path
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.storage import Storage
from orchestrator.tables import growing_files
from orchestrator.tables.growing_files import WINDOW, AttemptTail, LineTail, RankTail
from tests.orchestrator.disk.rows.test_rank_files import Immediately
from tests.orchestrator.tables.test_frames import FRESH, record, row

FOLDER = "stats/attempt=0/rank=0"


@pytest.fixture
def storage(location: str) -> Storage:
    storage = Storage(location)
    storage.write("run.json", "{}")  # a recorder writes only to a run's folder that is there
    return storage


def recorder(storage: Storage, rank: int = 0) -> Recorder:
    return Recorder(
        storage,
        f"stats/attempt=0/rank={rank}",
        {"rank": rank, "node": "here", "attempt": 0},
        flush_s=1e9,
    )


def append(to: Recorder, *iterations: int, **values: Any) -> None:
    for iteration in iterations:
        to.append(without_recorder_columns(row(0, "train", 0, iteration, iteration, **values)))
    to.sync()


def without_recorder_columns(full_row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the columns that the recorder adds."""
    return {
        name: value for name, value in full_row.items() if name not in ("rank", "node", "attempt")
    }


def look(tail: RankTail, storage: Storage) -> None:
    files = {
        parse_recorded_path(f"{FOLDER}/{name}"): state
        for name, state in storage.tree(FOLDER).items()
    }
    tail.update({file: state for file, state in files.items() if file is not None})


def seen(tail: RankTail) -> list[int]:
    return tail.window["iteration"].to_pylist() if len(tail.window) else []


def test_each_look_reads_only_new_rows(storage: Storage) -> None:
    rank = recorder(storage)
    tail = RankTail(storage)
    look(tail, storage)
    assert (tail.newest, tail.trained, tail.written, seen(tail)) == ({}, 0, None, [])
    append(rank, 1, 2)
    look(tail, storage)
    assert (tail.newest["iteration"], tail.trained, seen(tail)) == (2, 2, [1, 2])
    append(rank, 3)
    # A column that comes later begins a file of its own.
    append(rank, 4, accuracy=0.5)
    look(tail, storage)
    look(tail, storage)
    assert (tail.newest["accuracy"], seen(tail)) == (0.5, [1, 2, 3, 4])
    rank.close()


def test_partial_batch_is_read_once_it_is_whole(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    rank = recorder(storage)
    append(rank, 1, 2)
    append(rank, 3, 4)
    rank.close()
    (file,) = (tmp_path / FOLDER).glob("rows-*.arrow")
    whole = file.read_bytes()
    stages: set[tuple[int, ...]] = set()
    tail = RankTail(storage)
    for end in range(0, len(whole) + 1, 16):
        file.write_bytes(whole[:end])
        look(tail, storage)
        stages.add(tuple(seen(tail)))
    file.write_bytes(whole)
    look(tail, storage)
    assert stages | {tuple(seen(tail))} == {(), (1, 2), (1, 2, 3, 4)}


def test_old_rows_and_their_peaks_are_dropped(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    rank = recorder(storage)
    tail = RankTail(storage)
    append(rank, 1, rss_bytes=900)
    for first in range(2, 2 * WINDOW, 50):
        append(rank, *range(first, first + 50), rss_bytes=100)
    rank.append(without_recorder_columns(row(0, "val", 0, 1, 800, rss_bytes=300)))
    rank.close()
    look(tail, storage)
    last = seen(tail)[-1]
    assert seen(tail) == list(range(last - WINDOW + 1, last + 1))
    assert (tail.trained, tail.newest["phase"]) == (last, "val")
    assert tail.peaks == {"rss_bytes": 100}


def test_rows_rewritten_as_segments_are_followed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are written between two looks and amid a part that was begun; whoever comes later
    sees the same."""
    monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", 60)
    monkeypatch.setattr(parts, "PART_ROWS", 60)
    monkeypatch.setattr(growing_files, "WINDOW", 20)
    monkeypatch.setattr(part_rewriter, "Thread", Immediately)
    rank = recorder(storage)
    tail = RankTail(storage)
    for first in range(1, 600, 7):
        append(rank, *range(first, first + 7), rss_bytes=1000 - first)
        if first % 5 == 0:
            rank._files._rewriter.rewrite_due()  # type: ignore[union-attr]
        if first % 3 == 0:
            continue
        look(tail, storage)
        for one in (tail, RankTail(storage)):
            look(one, storage)
            iterations = list(range(max(1, first - 13), first + 7))
            assert (seen(one), one.trained, one.newest["iteration"]) == (
                iterations,
                first + 6,
                first + 6,
            )
            assert (one.newest["rank"], one.newest["attempt"]) == (0, 0)
            assert one.peaks == {"rss_bytes": 999 - (iterations[0] - 1) // 7 * 7}
    assert len([name for name in storage.names(FOLDER) if name.endswith(".parquet")]) > 3
    rank.close()


def test_ranks_appear_once_they_write(tmp_path: Path) -> None:
    """Ranks that begin to write later are found by the next look."""
    storage = Storage(tmp_path)
    tail = AttemptTail(storage, "stats/attempt=0")
    tail.update()
    assert (tail.ranks, len(tail.training_rows())) == ({}, 0)
    record(storage, [row(0, "train", 0, n, n, 1) for n in (1, 2)])
    tail.update()
    assert list(tail.ranks) == [1]
    record(storage, [row(0, "train", 0, 1, 1, 0), row(0, "val", 0, 1, 1, 0, accuracy=0.5)])
    tail.update()
    assert list(tail.ranks) == [0, 1]
    rows = tail.training_rows().to_pandas()
    assert rows[["rank", "phase", "iteration"]].to_numpy().tolist() == [
        [0, "train", 1],
        [1, "train", 1],
        [1, "train", 2],
    ]


def test_compacted_run_shows_its_last_rows(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    iterations = range(1, WINDOW + 11)
    ranks = [recorder(storage, rank) for rank in (0, 1)]
    for rank in ranks:
        append(rank, *iterations)
        rank.close()
    compact(storage, [FRESH])
    tail = AttemptTail(storage, "stats/attempt=0")
    tail.update()
    assert tail.ranks == {}
    tail.read_compacted([FRESH], iterations[-1])
    assert {rank: seen(one) for rank, one in tail.ranks.items()} == {
        rank: list(iterations[-WINDOW:]) for rank in (0, 1)
    }
    assert tail.ranks[1].newest["node"] == "here"


def test_each_whole_line_is_read_once(storage: Storage) -> None:
    tail = LineTail(storage, "metrics.jsonl")
    assert tail.read() == []
    text = "".join(json.dumps({"step": step}) + "\n" for step in (1, 2)) + '{"step": 3, "val/'
    found = []
    for written in (
        text[:5],
        text,
        text + 'loss": 0.5}\n',
        text + 'loss": 0.5}\n{"cut sh\n{"step": 4}\n',
    ):
        storage.write("metrics.jsonl", written)
        found.append(tail.read())
    assert found == [[], [{"step": 1}, {"step": 2}], [{"step": 3, "val/loss": 0.5}], [{"step": 4}]]
