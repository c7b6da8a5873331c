"""Questions to the rows of a run, beside pandas; and what a query of somebody else's may not do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.errors import UsageError
from orchestrator.stats.read import query as queries
from orchestrator.stats.read.query import Rows, query


def drawn(seed: int, count: int = 400) -> pd.DataFrame:
    """Rows of up to four ranks, with ties, values that are not finite and cells that are empty; sums of them are
    exact."""
    draw = np.random.default_rng(seed)
    step_s = draw.integers(0, 2**20, count) / 2**10
    return pd.DataFrame(
        {
            "rank": draw.integers(0, 1 + seed % 4, count),
            "node": draw.choice(["b", "a"], count),
            "phase": draw.choice(["val", "train"], count),
            "epoch": draw.integers(0, 3, count),
            "iteration": np.arange(count),
            "step_s": step_s,
            "loss": np.where(draw.random(count) < 0.3, np.nan, step_s),
            "lr": draw.choice([0.25, 0.5, 0.5], count),
            "grad norm": np.where(step_s == step_s.max(), np.inf, step_s),
            "of rank 0": np.where(draw.random(count) < 0.5, 1.0, np.nan),
            "empty": np.nan,
        }
    )


NUMBERS = ["step_s", "loss", "lr", "grad norm", "of rank 0", "empty"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("at_once", "deviations"), [(2**24, 4.0), (0, 4.0), (0, 0.01)])
def test_quantiles_are_those_of_pandas_to_the_last_bit(
    seed: int, at_once: int, deviations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken of all numbers at once, by selection, and by selection with bounds so close that they are missed at
    first."""
    monkeypatch.setattr(queries, "AT_ONCE", at_once)
    monkeypatch.setattr(queries, "SAMPLE", 100)
    monkeypatch.setattr(queries._Selection.values, "__defaults__", (deviations,))
    table = drawn(seed)
    rows, asked = Rows.of(table), {name: queries.quoted(name) for name in NUMBERS}
    assert rows.numbers == NUMBERS
    expected = table[table["rank"] > 0][NUMBERS].quantile([0.05, 0.5, 0.95])
    pd.testing.assert_frame_equal(rows.quantiles(asked, [0.05, 0.5, 0.95], "rank > 0"), expected, check_exact=True)
    for key in ("rank", "phase"):
        pd.testing.assert_frame_equal(
            rows.medians(asked, key), table.groupby(key)[NUMBERS].median(), check_exact=True, check_index_type=False
        )


def test_what_is_no_query_is_told_with_its_place() -> None:
    data = Rows.of(drawn(1)).source
    assert (
        query(data, 'select rank, max(step_s) as "most" from rows group by rank order by rank')["most"].tolist()
        == drawn(1).groupby("rank")["step_s"].max().tolist()
    )
    with pytest.raises(UsageError, match=r"(?s)step_z.*LINE 1: select step_z from rows\n +\^"):
        query(data, "select step_z from rows")
    with pytest.raises(UsageError, match='query: Parser Error: syntax error at or near "rows"'):
        query(data, "select rank\nfrm rows")


STRANGE = [
    "select * from read_text('{file}')",
    "select * from '{file}'",
    "select * from read_csv('{file}')",
    "select * from glob('/etc/*')",
    "copy (select 1) to '{file}'",
    "attach '{file}.db' as other",
    "install httpfs",
    "load '{file}'",
    "set enable_external_access = true",
    "create table taken as select * from rows",
    "drop view rows",
    "select 1; select 2",
    "",
    "select * from sys",
    "explain analyze select 1",
]


@pytest.mark.parametrize("sql", STRANGE)
def test_a_query_reads_no_file_and_writes_nothing(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a,b\n1,2\n")
    try:
        found: Any = query(Rows.of(drawn(0)).source, sql.format(file=file))
    except UsageError as error:
        found = str(error)
        assert found.startswith("query: ")
    assert len(found) == 0 or isinstance(found, str)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert file.read_text() == "a,b\n1,2\n"


SPILL = """
import os, sys
import pandas as pd
from orchestrator.stats.read import query
query.MEMORY = "40MiB"
rows = query.Rows.of(pd.DataFrame({"iteration": range(10)}))
found = rows.ask("select count(*) as c from (select a.range, hash(a.range) as h from range(3000000) a order by h)")
print(found["c"].iloc[0], *[name for name in os.listdir(sys.argv[1]) if str(os.getpid()) in name])
"""


def test_what_did_not_fit_into_memory_is_swept(tmp_path: Path) -> None:
    gone = tmp_path / "hookyard-query-999999999-left"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SPILL, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[0] == "3000000"
    assert len(done.stdout.split()) == 2
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() != str(tmp_path)
