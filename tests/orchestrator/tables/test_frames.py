import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.compaction import compact, compact_parts
from orchestrator.disk.rows.recorded_files import list_recorded_files
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.rows.valid_rows import open_valid_rows
from orchestrator.errors import UsageError
from orchestrator.storage import Storage
from orchestrator.tables.frames import load
from orchestrator.tables.growing_files import AttemptTail
from orchestrator.tables.query import Rows
from orchestrator.tables.summaries import summarize
from orchestrator.tables.user_query import query as run_query

FRESH = Attempt(0)


def attempt(
    number: int, iteration: int, step: int, stage: Stage, samples: int | None = None
) -> Attempt:
    seen = 8 * step if samples is None else samples
    return Attempt(
        number, position=Position(iteration=iteration, step=step, samples=seen, stage=stage)
    )


def row(
    attempt: int, phase: str, epoch: int, iteration: int, step: int, rank: int = 0, **values: Any
) -> dict[str, Any]:
    return {
        "rank": rank,
        "node": "here",
        "attempt": attempt,
        "phase": phase,
        "epoch": epoch,
        "iteration": iteration,
        "step": step,
        "samples": 8 * step,
        "loss": attempt + iteration / 10,
        **values,
    }


def keys(frame: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return list(frame[list(names)].itertuples(index=False, name=None))


def record(
    storage: Storage, rows: list[dict[str, Any]], costs: list[dict[str, Any]] | None = None
) -> None:
    """Writes rows as the ranks of their attempts do."""
    by_writer: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in rows:
        by_writer.setdefault((one["attempt"], one["rank"]), []).append(one)
    for (attempt, rank), own in by_writer.items():
        identity = {"rank": rank, "node": "here", "attempt": attempt}
        recorder = Recorder(storage, f"stats/attempt={attempt}/rank={rank}", identity, flush_s=1e9)
        for one in own:
            recorder.append({name: value for name, value in one.items() if name not in identity})
            recorder.sync()
        recorder.append_costs(costs or [])
        recorder.close()


def loaded(rows: list[dict[str, Any]], attempts: Sequence[Attempt] = (FRESH,)) -> pd.DataFrame:
    """The table of rows that ranks have written."""
    storage = Storage(f"memory://{uuid.uuid4()}")
    record(storage, rows)
    return load(storage, attempts)


# Which rows count


def test_rows_of_one_attempt_all_count_in_order() -> None:
    rows = [
        row(0, "val", 0, 1, 2),
        row(0, "train", 0, 2, 2),
        row(0, "train", 0, 1, 1),
        row(0, "test", 0, 1, 2),
    ]
    stats = loaded(rows)
    assert keys(stats, "phase", "iteration") == [
        ("train", 1),
        ("train", 2),
        ("val", 1),
        ("test", 1),
    ]
    assert list(stats.columns) == [
        "rank",
        "node",
        "phase",
        "epoch",
        "iteration",
        "step",
        "attempt",
        "samples",
        "loss",
    ]


def test_training_past_the_start_of_a_later_attempt_is_superseded() -> None:
    """Two micro-batches make a step; the second attempt begins at iteration 4, which is step 2."""
    first = [row(0, "train", 0, n, n // 2) for n in range(1, 8)]
    second = [row(1, "train", 0, n, n // 2) for n in range(5, 9)]
    stats = loaded(first + second, [FRESH, attempt(1, 4, 2, Stage.TRAIN)])
    assert keys(stats, "iteration", "attempt") == [(n, 0) for n in (1, 2, 3, 4)] + [
        (n, 1) for n in (5, 6, 7, 8)
    ]


@pytest.mark.parametrize(
    ("stage", "counting"),
    [
        (Stage.TRAINED, [(0, 1, 0), (0, 2, 0), (1, 1, 1), (1, 2, 1)]),
        (Stage.VALIDATED, [(0, 1, 0), (0, 2, 0), (1, 1, 0), (1, 2, 0)]),
        (Stage.REPORTED, [(0, 1, 0), (0, 2, 0), (1, 1, 0), (1, 2, 0)]),
    ],
)
def test_validation_repeats_only_after_a_checkpoint_before_it(
    stage: Stage, counting: list[Any]
) -> None:
    """Epochs of five steps, validated in two iterations; the checkpoint is of the end of the second
    epoch."""
    first = [row(0, "val", epoch, n, 5 * epoch + 5) for epoch in (0, 1, 2) for n in (1, 2)]
    second = [row(1, "val", 1, n, 10) for n in (1, 2)] if stage is Stage.TRAINED else []
    stats = loaded(first + second, [FRESH, attempt(1, 10, 10, stage)])
    assert sorted(keys(stats, "epoch", "iteration", "attempt")) == counting


def test_validation_before_a_skipped_step_stays() -> None:
    """Validated at step 7, then a step was left out, then came the checkpoint: still step 7, eight
    samples later."""
    rows = [row(0, "val", 0, n, 7, samples=56) for n in (1, 2)] + [
        row(0, "val", 0, 3, 7, samples=64)
    ]
    stats = loaded(rows, [FRESH, attempt(1, 8, 7, Stage.TRAINED, samples=64)])
    assert keys(stats, "iteration", "attempt") == [(1, 0), (2, 0)]


def test_repeated_validation_of_a_stream_supersedes_on_every_rank() -> None:
    """At the checkpoint before a validation, rank 0 had seen 36 samples and rank 1 had seen 30."""
    seen = {0: 36, 1: 30}
    rows = [
        {**row(number, "val", 0, 1, 3, samples=samples), "rank": rank}
        for number in (0, 1)
        for rank, samples in seen.items()
    ]
    begun = replace(attempt(1, 6, 3, Stage.TRAINED, samples=36), samples=[36, 30])
    assert keys(loaded(rows, [FRESH, begun]), "rank", "attempt") == [(0, 1), (1, 1)]


def test_test_phase_is_always_superseded() -> None:
    rows = [row(0, "test", 1, 1, 10), row(1, "test", 1, 1, 10)]
    stats = loaded(rows, [FRESH, attempt(1, 10, 10, Stage.REPORTED)])
    assert keys(stats, "iteration", "attempt") == [(1, 1)]


def test_third_attempt_may_start_before_the_second() -> None:
    """The newest checkpoint was damaged, so the third began at an older one than the second had."""
    rows = [
        row(number, "train", 0, n, n)
        for number, begin in ((0, 1), (1, 7), (2, 5))
        for n in range(begin, 10)
    ]
    attempts = [FRESH, attempt(1, 6, 6, Stage.TRAIN), attempt(2, 4, 4, Stage.TRAIN)]
    stats = loaded(rows, attempts)
    assert keys(stats, "iteration", "attempt") == [(n, 0) for n in range(1, 5)] + [
        (n, 2) for n in range(5, 10)
    ]


def test_without_rows_the_table_has_its_first_columns() -> None:
    assert list(loaded([]).columns) == ["rank", "node", "phase", "epoch", "iteration", "step"]


# From files


ROWS = [
    *(row(0, "train", 0, n, n, rank, step_s=0.1 * n) for rank in (0, 1) for n in range(1, 6)),
    *(row(1, "train", 0, n, n, rank, grad_norm=n) for rank in (0, 1) for n in range(4, 8)),
    *(row(1, "val", 0, 1, 7, rank, accuracy=1 if rank else 0.5) for rank in (0, 1)),
]
ATTEMPTS = [FRESH, attempt(1, 3, 3, Stage.TRAIN)]


# A part of the table


QUESTIONS: list[tuple[list[str] | None, str | None, str]] = [
    (["loss"], None, "rank >= 0"),
    (["iteration", "rank", "loss"], "rank == 1", "rank == 1"),
    (None, "iteration > 2 and phase == 'train'", "iteration > 2 and phase == 'train'"),
    (["grad_norm"], "grad_norm >= 5", "grad_norm >= 5"),
    (["accuracy", "step_s"], "rank == 0 or accuracy == 1", "rank == 0 or accuracy == 1"),
    (["attempt"], "loss < 0.45 and attempt == 0", "loss < 0.45 and attempt == 0"),
    (None, "rank == 7", "rank == 7"),
]


@pytest.mark.parametrize("state", ["alive", "killed while compacting", "compacted", "gone on with"])
def test_columns_and_conditions_select_from_the_whole_table(tmp_path: Path, state: str) -> None:
    storage = Storage(tmp_path)
    record(storage, ROWS)
    if state == "killed while compacting":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Storage, "delete", lambda *_: None)
            compact(storage, ATTEMPTS)
    elif state != "alive":
        compact(storage, ATTEMPTS)
    attempts = ATTEMPTS
    if state == "gone on with":
        attempts = [*ATTEMPTS, attempt(2, 5, 5, Stage.TRAIN)]
        record(
            storage,
            [row(2, "train", 0, n, n, rank, found_inf=0.0) for rank in (0, 1) for n in (6, 7, 8)],
        )
    whole = load(storage, attempts)
    # Each of two ranks has 7 training rows and 1 of validation; the resume at 5 trains to 8 and
    # drops the validation.
    assert len(whole) == 16
    for columns, where, query in QUESTIONS:
        expected = whole.query(query)[columns or list(whole.columns)].reset_index(drop=True)
        part = load(storage, attempts, columns, where)
        for name in set(part.columns) & {
            "phase",
            "node",
        }:  # a part has the categories that are in it
            expected[name] = expected[name].cat.remove_unused_categories()
        # Whole numbers with empty cells between them are floats in pandas; in a part without empty
        # cells they are not.
        pd.testing.assert_frame_equal(
            part, expected, check_dtype=False, check_categorical=len(expected) > 0
        )


def test_condition_never_selects_superseded_rows(tmp_path: Path) -> None:
    """The second attempt's row is valid and does not meet the condition; the first's is superseded
    and does."""
    twice = [row(0, "val", 0, 1, 4, loss=9.0), row(1, "val", 0, 1, 4, loss=1.0)]
    record(Storage(tmp_path), twice)
    attempts = [FRESH, attempt(1, 3, 3, Stage.TRAIN)]
    assert load(Storage(tmp_path), attempts)["loss"].tolist() == [1.0]
    assert len(load(Storage(tmp_path), attempts, where="loss > 5")) == 0


def test_unknown_column_error_suggests_the_nearest(tmp_path: Path) -> None:
    record(Storage(tmp_path), ROWS)
    with pytest.raises(UsageError, match="no column 'grad_nrm'; did you mean 'grad_norm'"):
        load(Storage(tmp_path), ATTEMPTS, ["grad_nrm"])
    with pytest.raises(UsageError, match=r"columns must be a list of names, such as \['loss'\]"):
        load(Storage(tmp_path), ATTEMPTS, "loss")
    with pytest.raises(UsageError, match="where: must be text with a condition in SQL, got 5"):
        load(Storage(tmp_path), ATTEMPTS, None, 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Quote text: 'train'"):
        load(Storage(tmp_path), ATTEMPTS, None, "phase = train")
    with pytest.raises(UsageError, match="no column 'superseded'"):
        load(Storage(tmp_path), ATTEMPTS, where="superseded == True")


@pytest.mark.parametrize("where", [None, "iteration > 2"])
def test_table_larger_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    record(Storage(tmp_path), ROWS)
    compact(Storage(tmp_path), ATTEMPTS)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=600))
    assert (
        len(load(Storage(tmp_path), ATTEMPTS, ["iteration"], "rank == 0 and iteration == 3")) == 1
    )
    with pytest.raises(UsageError, match=r"loading its \d+ rows needs .*, 600 B is free"):
        load(Storage(tmp_path), ATTEMPTS, None, where)


def test_parts_rewritten_during_a_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path)
    record(storage, [*ROWS[:5], row(0, "train", 0, 6, 6, later=1.0)])
    parts = list_recorded_files(storage, "rows").parts
    read = Storage.read
    expected = load(storage, [FRESH])

    def rewriting(self: Storage, name: str, start: int = 0) -> bytes:
        if name == parts[1].path:
            monkeypatch.setattr(Storage, "read", read)
            compact_parts(storage, parts)
        return read(self, name, start)

    assert len(parts) == 2
    monkeypatch.setattr(Storage, "read", rewriting)
    pd.testing.assert_frame_equal(load(storage, [FRESH]), expected)
    assert [one.path for one in list_recorded_files(storage, "rows").parts] == []


def test_columns_have_the_smallest_safe_types(tmp_path: Path) -> None:
    record(Storage(tmp_path), ROWS)
    narrow_counters = {
        "rank": "int32",
        "epoch": "int32",
        "iteration": "int32",
        "step": "int32",
        "attempt": "int16",
    }
    for _ in range(2):
        table = load(Storage(tmp_path), ATTEMPTS)
        assert {
            name: str(kind) for name, kind in table.dtypes.items() if name in narrow_counters
        } == narrow_counters
        assert {str(table[name].dtype) for name in ("phase", "node")} == {"category"}
        assert {str(table[name].dtype) for name in ("loss", "grad_norm", "step_s")} == {"float64"}
        table.loc[0, "rank"] = 5  # a user's own to change
        compact(Storage(tmp_path), ATTEMPTS)
    (tmp_path / "long").mkdir()
    record(Storage(tmp_path / "long"), [row(0, "train", 0, 2**31, 1)])
    assert load(Storage(tmp_path / "long"), [FRESH])["iteration"].tolist() == [2**31]


COLUMNS: dict[str, list[list[Any]]] = {
    "integers": [[2**53 + 1, 3], [7, 2**60 + 1]],
    "integers, nothing": [[5, 3], [None, None]],
    "integers, floats": [[2**53 + 1, None], [0.5, 2.0]],
    "small integers, floats": [[5, 3], [0.5, 2.0]],
    "integers, text": [[2**53 + 1, 3], ["warm", None]],
    "text, floats": [["1.5", "warm"], [0.5, 2.0]],
    "nothing, text": [[None, None], ["warm", "cold"]],
    "truth, NaN": [[True, False], [float("nan"), None]],
}
"""Values of one column, on each rank."""


@pytest.mark.parametrize("state", ["growing", "segments", "joined", "joined and growing"])
@pytest.mark.parametrize("by_rank", COLUMNS.values(), ids=[*COLUMNS])
def test_column_has_one_type_in_every_table(
    tmp_path: Path, by_rank: list[list[Any]], state: str
) -> None:
    storage = Storage(tmp_path)
    attempts = [FRESH]
    values = [own[n] for n in range(2) for own in by_rank]
    rows = [
        row(0, "train", 0, 1 + n // 2, 1 + n // 2, n % 2, x=value) for n, value in enumerate(values)
    ]
    if state == "joined and growing":
        record(storage, rows[:2])
        compact(storage, attempts)
        attempts = [FRESH, attempt(1, 1, 1, Stage.TRAIN)]
        rows = [{**one, "attempt": 1} for one in rows[2:]]
    record(storage, rows)
    if state == "joined":
        compact(storage, attempts)
    elif state == "segments":
        for parts in list_recorded_files(storage, "rows").parts_by_rank:
            compact_parts(storage, parts)

    kinds = set(map(type, values))
    expected = pd.Series(
        values, name="x", dtype=object if str in kinds else "int64" if kinds == {int} else float
    )
    if str in kinds:
        expected = expected.map(
            lambda value: value if value is None else str(value).removesuffix(".0")
        )
    known = expected.dropna()
    source = open_valid_rows(storage, attempts)
    if (
        state == "segments" and by_rank == COLUMNS["small integers, floats"]
    ):  # Arrow casts them while it reads
        assert len([*source.data.children[0].get_fragments()]) == 2
    pd.testing.assert_series_equal(load(storage, attempts)["x"], expected)
    assert load(storage, attempts, where="x is not null")["x"].tolist() == known.tolist()
    found = run_query(source, "select rank, x from rows order by iteration, rank")
    assert found[found["rank"] == 0]["x"].dropna().tolist() == expected[::2].dropna().tolist()
    if str in kinds:
        assert (
            load(storage, attempts, ["x"], "x = 'warm'")["x"].tolist()
            == known[known == "warm"].tolist()
        )
    else:
        quantiles = known.astype(float).quantile([0, 0.5, 1])
        assert (
            summarize(Rows(source)).loc["x", ["min", "median", "max"]].tolist()
            == quantiles.tolist()
        )
    if state in ("growing", "segments"):
        tail = AttemptTail(storage, "stats/attempt=0")
        tail.update()
        newest = tail.training_rows().to_pandas().sort_values(["iteration", "rank"])["x"]
        assert newest.dropna().tolist() == known.tolist()


@pytest.mark.parametrize("state", ["growing", "joined"])
def test_large_integers_with_gaps_are_exact_in_every_table(tmp_path: Path, state: str) -> None:
    """As pandas' floats they would be rounded; smaller ones stay floats, as `pandas.read_parquet`
    gives them."""
    large = [2**53 + 1, None, -(2**63)]
    unsigned = [2**64 - 1, None, 1]
    small = [1, None, 2]
    rows = [
        {"x": one, "u": None if two is None else np.uint64(two), "few": few, "on": few and few > 1}
        for one, two, few in zip(large, unsigned, small, strict=True)
    ]
    storage = Storage(tmp_path)
    record(storage, [row(0, "train", 0, n, n, **values) for n, values in enumerate(rows, 1)])
    if state == "joined":
        compact(storage, [FRESH])
    source = open_valid_rows(storage, [FRESH])
    for table in (
        load(storage, [FRESH]),
        run_query(source, 'select x, u, few, "on" from rows order by iteration'),
    ):
        assert [None if value is pd.NA else int(value) for value in table["x"]] == large
        assert [None if value is pd.NA else int(value) for value in table["u"]] == unsigned
        assert table["few"].dropna().tolist() == [1, 2]
        assert table["on"].dropna().tolist() == [0.0, 1.0]
    loaded = load(storage, [FRESH])
    assert {name: str(loaded[name].dtype) for name in ("x", "u", "few", "iteration", "loss")} == {
        "x": "Int64",
        "u": "UInt64",
        "few": "float64",
        "iteration": "int32",
        "loss": "float64",
    }
