"""What is asked of a run's files is what its table has, wherever its rows lie."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hooks.position import Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows import compaction, reader
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.valid_rows import open_valid_rows
from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.tables.frames import load
from orchestrator.tables.query import Rows
from orchestrator.tables.user_query import query
from tests.orchestrator.tables.test_frames import FRESH, attempt, record, row

ROW_KEY = ["rank", "phase", "epoch", "iteration"]


def drawn(seed: int) -> tuple[list[dict[str, Any]], list[Attempt]]:
    """Rows of up to three ranks, one without `accuracy` and one with text; and of a later attempt
    from the middle."""
    draw = np.random.default_rng(seed)
    begins = [0, *sorted(draw.integers(1, 12, seed % 3).tolist())]
    rows = []
    for number, begin in enumerate(begins):
        for rank in range(1 + seed % 3):
            for n in range(begin + 1, 13):
                values = {"step_s": n / 8, "grad_norm": float("nan") if n == 3 else None} | (
                    {"note": "x"} if rank == 1 else {"accuracy": 1 if n % 2 else 0.5}
                )
                rows.append(row(number, "train", n // 6, n, n, rank, **values))
            rows.append(row(number, "val", 1, 1, 12, rank, step_s=2.0))
    return rows, [
        FRESH,
        *(
            attempt(number, begin, begin, Stage.TRAIN)
            for number, begin in enumerate(begins[1:], start=1)
        ),
    ]


@pytest.mark.parametrize("lie", ["alive", "spooled", "joined", "apart", "apart and alive"])
@pytest.mark.parametrize("seed", range(3))
def test_queries_see_each_valid_row_once(
    seed: int, lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path)
    rows, attempts = drawn(seed)
    last = len(attempts) - 1
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 0 if lie == "spooled" else 2**20)
    monkeypatch.setattr(compaction, "JOINED_ROWS", 0 if "apart" in lie else 2**20)
    record(storage, [one for one in rows if lie != "apart and alive" or one["attempt"] < last])
    if lie not in ("alive", "spooled"):
        compact(storage, attempts)
    if lie == "apart and alive":
        record(storage, [one for one in rows if one["attempt"] == last])
    for where in (None, "rank == 1 and iteration > 4", "accuracy == 1"):
        expected = (
            load(storage, attempts, None, where)
            .astype({"phase": str, "node": str})
            .sort_values(ROW_KEY, ignore_index=True)
        )
        condition = f" where {where}" if where else ""
        found = query(open_valid_rows(storage, attempts), f"select * from rows{condition}")
        found = found.sort_values(ROW_KEY, ignore_index=True)
        pd.testing.assert_frame_equal(
            found[[*expected.columns]], expected, check_dtype=False, check_exact=True
        )


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    rows, attempts = drawn(2)
    record(storage, rows)
    compact(storage, attempts)
    harmed = bytearray((tmp_path / "stats.parquet").read_bytes())
    place = harmed.index(b"PAR1") + 60
    harmed[place] ^= 0xFF
    (tmp_path / "stats.parquet").write_bytes(harmed)
    with pytest.raises(DamagedFile, match=r"stats\.parquet"):
        query(open_valid_rows(storage, attempts), "select * from rows")
    with pytest.raises(DamagedFile, match=r"stats\.parquet"):
        Rows(open_valid_rows(storage, attempts)).query("select * from rows")
