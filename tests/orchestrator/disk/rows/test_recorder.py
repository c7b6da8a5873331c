import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hooks import State
from hooks.logs.shared.statistic import Statistic
from hooks.logs.shared.window_statistics import Windows
from orchestrator.disk.rows.batches import Layout
from orchestrator.disk.rows.file_format import read_stream
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import UsageError
from orchestrator.storage import Storage

FOLDER = "stats/attempt=0/rank=0"


def files(root: Path, table: str = "rows") -> list[Path]:
    return sorted((root / FOLDER).glob(f"{table}-*.arrow"))


def read(root: Path, table: str = "rows") -> list[dict[str, Any]]:
    rows = []
    for file in files(root, table):
        for batch in read_stream(file.read_bytes(), "").batches:
            rows.extend(batch.to_pylist())
    return rows


def recorder(root: Path, **options: Any) -> Recorder:
    return Recorder(Storage(root), FOLDER, **{"flush_s": 1e9, **options})


def record(root: Path, *rows: dict[str, Any], together: bool = True) -> list[dict[str, Any]]:
    """What is read of some rows: flushed together, or each by itself."""
    taken = recorder(root)
    for row in rows:
        taken.append(dict(row))
        if not together:
            taken.sync()
    taken.close()
    return read(root)


def test_rows_are_recorded_with_the_identity_first(tmp_path: Path) -> None:
    taken = recorder(tmp_path, identity={"rank": 3, "node": "a", "attempt": 1})
    rows = [{"phase": "train", "iteration": n, "loss": n / 7, "lr": 0.1} for n in range(1000)]
    for row in rows:
        taken.append(dict(row))
    taken.close()
    found = read(tmp_path)
    assert found == [{"rank": 3, "node": "a", "attempt": 1, **row} for row in rows]
    assert list(found[0]) == ["rank", "node", "attempt", "phase", "iteration", "loss", "lr"]


@pytest.mark.parametrize("together", [True, False])
def test_late_column_is_empty_before(tmp_path: Path, together: bool) -> None:
    rows = [{"a": 1}, {"a": 2, "b": 0.5}, {"a": 3}]
    found = record(tmp_path, *rows, together=together)
    assert [(row["a"], row.get("b")) for row in found] == [(1, None), (2, 0.5), (3, None)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5, 3], [1.0, 2.5, 3.0]),
        ([1.5, 2, 3], [1.5, 2.0, 3.0]),
        ([None, 1, None, 2.5], [None, 1.0, None, 2.5]),
        ([None, "x"], [None, "x"]),
        ([float("nan"), 1], None),
        ([True, False], [1.0, 0.0]),
        ([True, 0.5, 2], [1.0, 0.5, 2.0]),
        ([2, True, torch.tensor(0.5)], [2.0, 1.0, 0.5]),
        ([2**64, 1], [2.0**64, 1.0]),
        ([2**53 + 1, 2**60], [2**53 + 1, 2**60]),
        ([torch.tensor(2**53 + 1), 3], [2**53 + 1, 3]),
        ([torch.tensor(2**63 - 1), torch.tensor(-(2**63))], [2**63 - 1, -(2**63)]),
        (
            [torch.tensor(2**64 - 1, dtype=torch.uint64), torch.tensor(1, dtype=torch.uint64)],
            [2**64 - 1, 1],
        ),
        ([np.uint64(2**64 - 1), None, np.uint64(1)], [2**64 - 1, None, 1]),
        ([torch.tensor(True), None], [1.0, None]),
        ([2**64 - 1, 2**63], [2**64 - 1, 2**63]),
        ([2**63, -1, None], [2**63, -1, None]),
        ([2**64 - 1, -(2**62) - 1, None], [2**64 - 1, -(2**62) - 1, None]),
        ([np.uint64(2**64 - 1), torch.tensor(-(2**63))], [2**64 - 1, -(2**63)]),
        ([0.5, 2**53 + 1], [0.5, 2.0**53]),
        (["warm", 2**53 + 1, None], ["warm", str(2**53 + 1), None]),
        (["warm", 2.5, True], ["warm", "2.5", "1"]),
    ],
)
def test_mixed_types_keep_their_values(
    tmp_path: Path, together: bool, values: list[Any], expected: list[Any]
) -> None:
    rows = [{"x": value} for value in values]
    found = [row["x"] for row in record(tmp_path, *rows, together=together)]
    if expected is None:
        np.testing.assert_equal(found, values)
    else:
        assert found == expected


def test_tensors_and_numpy_numbers_become_numbers(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.tensor([0.1]))
    rows = [
        {"a": torch.tensor(0.25), "b": weight * 2, "c": np.float32(0.5), "d": np.int64(3)},
        {"a": 1, "b": torch.tensor([3.0], dtype=torch.bfloat16), "c": 2.0, "d": 4},
        {"a": torch.tensor(2**40), "b": None, "c": 1.0, "d": 5},
    ]
    assert record(tmp_path, *rows) == [
        {"a": 0.25, "b": pytest.approx(0.2, rel=1e-7), "c": 0.5, "d": 3},
        {"a": 1.0, "b": 3.0, "c": 2.0, "d": 4},
        {"a": float(2**40), "b": None, "c": 1.0, "d": 5},
    ]


@pytest.mark.parametrize("value", [[1, 2], Decimal("0.5"), {"a": 1}, object()])
def test_values_that_are_neither_numbers_nor_text_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"column 'x' must hold numbers or text; got "):
        record(tmp_path, {"x": value})


def test_columns_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    taken = recorder(tmp_path, identity={"rank": 0})
    taken.append({"lr": 0.1})
    taken.sync()
    taken.append({"LR": 0.1})
    with pytest.raises(UsageError, match="columns 'lr' and 'LR' differ only in case"):
        taken.sync()
    taken.close()


def test_tensor_with_several_numbers_is_refused(tmp_path: Path) -> None:
    taken = recorder(tmp_path)
    taken.append({"norms": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"column 'norms' got a tensor of shape \(2, 3\)"):
        taken.sync()


# When rows are flushed


def test_buffer_is_bounded(tmp_path: Path) -> None:
    taken = recorder(tmp_path, flush_rows=10)
    on_disk = []
    for n in range(100):
        taken.append({"n": n})
        on_disk.append(len(read(tmp_path)))
    assert on_disk == [10 * (n // 10) for n in range(1, 101)]
    taken.append({"n": 100})
    taken.sync()
    assert [row["n"] for row in read(tmp_path)] == list(range(101))
    taken.close()


def test_few_rows_are_flushed_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("orchestrator.disk.rows.recorder.perf_counter", lambda: now[0])
    taken = recorder(tmp_path, flush_s=1.0)
    taken.append({"n": 0})
    now[0] += 0.9
    taken.append({"n": 1})
    assert files(tmp_path) == []
    now[0] += 0.1
    taken.append({"n": 2})
    assert len(read(tmp_path)) == 3
    now[0] += 0.9
    taken.append({"n": 3})
    assert len(read(tmp_path)) == 3
    taken.close()


class Watched(dict[str, Any]):
    """A row that tells whether anybody has it still."""


def test_recorder_without_storage_drops_rows() -> None:
    taken = Recorder(flush_rows=1, recent=1)
    rows = [Watched(n=1), Watched(hook="ema")]
    kept = [weakref.ref(row) for row in rows]
    taken.append(rows[0])
    taken.append_costs(rows[1:])
    taken.append({"n": 2})
    del rows
    assert [row() for row in kept] == [None, None]
    taken.close()


class Span:
    """Seconds that the device knows later."""

    def __init__(self, seconds: float, passed: bool = False) -> None:
        self.seconds = seconds
        self.passed = passed
        self.waited = False

    def ready(self) -> bool:
        return self.passed

    def resolve(self) -> float:
        self.waited = not self.passed
        return self.seconds


def test_flush_does_not_wait_for_the_device(tmp_path: Path) -> None:
    spans = [
        Span(0.1, passed=True),
        Span(0.2, passed=True),
        Span(0.3, passed=True),
        Span(0.4),
        Span(0.5),
        Span(0.6),
    ]
    taken = recorder(tmp_path, flush_rows=2)
    for span in spans:
        taken.append({"forward_s": span})
    assert [row["forward_s"] for row in read(tmp_path)] == [0.1, 0.2]
    assert not any(span.waited for span in spans)
    taken.sync()
    assert [row["forward_s"] for row in read(tmp_path)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert [span.waited for span in spans] == [False, False, False, True, True, True]
    taken.close()


DOUBLES: Layout = {
    "n": lambda numbers: numbers[:, 0].astype(int),
    "twice": lambda numbers: 2 * numbers[:, 0],
    "time": lambda numbers: numbers[:, 1],
}
"""Numbers `n` and `time`, and `twice`, which is reckoned where it is looked at."""


def test_layout_labels_and_hooks_make_the_columns(tmp_path: Path) -> None:
    taken = recorder(tmp_path, flush_rows=2)
    taken.begin({"phase": "train"}, DOUBLES)
    for n in range(3):
        taken.append({"extra": n} if n == 1 else None, (n, 0.5))
    taken.begin({"phase": "val"}, DOUBLES)
    taken.append(None, (7, 0.5))
    taken.close()
    assert read(tmp_path) == [
        {"phase": "train", "n": 0, "twice": 0.0, "time": 0.5, "extra": None},
        {"phase": "train", "n": 1, "twice": 2.0, "time": 0.5, "extra": 1},
        {"phase": "train", "n": 2, "twice": 4.0, "time": 0.5, "extra": None},
        {"phase": "val", "n": 7, "twice": 14.0, "time": 0.5, "extra": None},
    ]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("kept", [1, 5, 100])
def test_recent_rows_are_kept_before_and_after_a_flush(tmp_path: Path, kept: int) -> None:
    taken = recorder(tmp_path, flush_rows=4, recent=kept)
    rows: list[dict[str, Any]] = []
    assert list(taken.recent) == []
    for n in range(50):
        if n % 20 == 0:
            taken.begin({"phase": f"phase {n}"}, DOUBLES)
        added = {"extra": n} if n % 3 == 0 else {}
        taken.append(added, (n, 0.5))
        rows.append(
            {"phase": f"phase {n // 20 * 20}", "n": n, "twice": 2.0 * n, "time": 0.5, **added}
        )
        if n % 10 == 9:
            taken.sync()
        assert list(taken.recent) == rows[-kept:]
        assert list(reversed(taken.recent)) == rows[-kept:][::-1]
        assert (len(taken.recent), taken.recent[-1]) == (len(rows[-kept:]), rows[-1])
        assert taken.recent.total == len(rows)
        assert taken.recent.columns(2)["twice"] == [row["twice"] for row in rows[-min(2, kept) :]]
        assert taken.recent.columns(2, names={"twice", "gone"}) == {
            "twice": [row["twice"] for row in rows[-min(2, kept) :]]
        }
        of_phase = [row["n"] for row in rows[-kept:] if row["phase"] == "phase 0"]
        assert set(of_phase) <= set(taken.recent.columns(kept, phase="phase 0").get("n", ()))
    assert taken.recent[0] == rows[-kept:][0]
    assert taken.recent[-2:] == rows[-kept:][-2:]
    with pytest.raises(IndexError, match="row 100 of"):
        taken.recent[100]
    taken.close()


def test_windows_of_recorded_rows_are_those_of_numpy(tmp_path: Path) -> None:
    """A logger reads only as many rows as its windows need, but each value of a column that few
    rows have. It reads the current row before the row has its time."""
    taken = recorder(tmp_path, flush_rows=16)
    statistics = {
        "largest": Statistic("n", "max", 3),
        "mean": Statistic("rare", "mean", 4),
        "last": Statistic("rare", "current", 4),
        "time_s": Statistic("time", "mean", 5),
    }
    windows = Windows(2, statistics)
    state = State(phase="train", recent=taken.recent)
    taken.begin({"phase": "train"}, DOUBLES)
    windows.start_phase(state)
    numbers = np.random.default_rng(0).integers(1000, size=(200, 2)).astype(float)
    rare: list[int] = []
    for index, row in enumerate(numbers):
        added = {"rare": index} if index % 7 == 3 else {}
        rare += added.values()
        if index in (0, 3, 4, 6, 30, 31, 50, 100, 103, 190):
            seen = windows.summarize({"n": row[0], **added})
            assert seen["largest"] == numbers[: index + 1, 0][-3:].max()
            if index:
                assert seen["time_s"] == pytest.approx(numbers[:index, 1][-5:].mean())
            if rare:
                assert (seen["mean"], seen["last"]) == (np.mean(rare[-4:]), rare[-1])
        taken.append(added or None, (*row,))
    taken.close()


def test_columns_that_few_rows_have_are_read_whole(tmp_path: Path) -> None:
    taken = recorder(tmp_path)
    taken.begin({"phase": "train"}, DOUBLES)
    for n in range(9):
        taken.append({"extra": n} if n == 4 else None, (n, 0.5))
    columns = taken.recent.columns(6, names={"n", "extra"}, most=2)
    assert columns == {"n": [7, 8], "extra": [None, 4, None, None, None, None]}
    assert taken.recent.columns(6, names={"n"}, most=8) == {"n": [3, 4, 5, 6, 7, 8]}
    taken.close()


# Files


def test_hook_costs_have_their_own_file(tmp_path: Path) -> None:
    taken = recorder(tmp_path, identity={"rank": 0})
    taken.append_costs([{"hook": "ema", "event": "on_update", "calls": 3, "seconds": 0.5}])
    taken.append({"n": 1})
    taken.close()
    assert read(tmp_path, "costs") == [
        {"rank": 0, "hook": "ema", "event": "on_update", "calls": 3, "seconds": 0.5}
    ]
    assert read(tmp_path) == [{"rank": 0, "n": 1}]
