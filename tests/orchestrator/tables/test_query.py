"""Questions to the rows of a run, beside pandas; and what a query of somebody else's may not do."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from orchestrator.disk.rows.source import Source
from orchestrator.errors import UsageError
from orchestrator.tables import query as query_module
from orchestrator.tables import user_query
from orchestrator.tables.database import open_database, quote
from orchestrator.tables.query import Rows, read_matching_rows
from orchestrator.tables.user_query import query


def drawn(seed: int, count: int = 400) -> pd.DataFrame:
    """Rows of up to four ranks, with ties, non-finite values and empty cells, whose sums are
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


@pytest.mark.parametrize("seed", range(4))
def test_quantiles_equal_those_of_pandas_bit_for_bit(seed: int) -> None:
    table = drawn(seed)
    rows = Rows.wrap(table)
    asked = {name: quote(name) for name in NUMBERS}
    assert rows.numbers == NUMBERS
    expected = table[table["rank"] > 0][NUMBERS].quantile([0.05, 0.5, 0.95])
    pd.testing.assert_frame_equal(
        rows.quantiles(asked, [0.05, 0.5, 0.95], "rank > 0"), expected, check_exact=True
    )
    for key in ("rank", "phase"):
        pd.testing.assert_frame_equal(
            rows.medians(asked, key),
            table.groupby(key)[NUMBERS].median(),
            check_exact=True,
            check_index_type=False,
        )


@pytest.mark.filterwarnings("error")
def test_quantiles_of_infinite_numbers_are_among_them() -> None:
    inf = float("inf")
    rows = Rows.wrap(pd.DataFrame({"a": [inf, 1.0, -inf], "b": [inf] * 3, "c": [1.0, 2.0, inf]}))
    quantiles = rows.quantiles({name: name for name in "abc"}, [0.5, 0.95])
    assert quantiles.to_dict("list") == {"a": [1.0, inf], "b": [inf, inf], "c": [2.0, inf]}


@pytest.mark.parametrize("keys", [["rank"], ["rank", "iteration"], ["rank", "epoch", "iteration"]])
def test_quantiles_of_many_rows_come_from_a_sample_of_each_group(
    monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    """A quantile of 5,000 numbers lies within 1 / sqrt(5000) = 1.4% of its rank, in two of three
    draws by half."""
    monkeypatch.setattr(query_module, "MAX_EXACT_VALUES", 20_000)
    count = 100_000
    table = pd.DataFrame(
        {"rank": 0, "epoch": 0, "iteration": range(count), "step_s": np.linspace(0, 1, count)}
    )
    table.loc[:49, "rank"] = 1
    rows = Rows.wrap(table[[*keys, "step_s"]])
    assert rows.quantiles({"s": "step_s"}, [0.5, 0.95])["s"].tolist() == pytest.approx(
        [0.5, 0.95], abs=0.02
    )
    medians = rows.medians({"s": "step_s"}, "rank")["s"]
    assert medians[0] == pytest.approx(0.5, abs=0.03)
    assert medians[1] == table["step_s"][:50].median()
    alone = Rows.wrap(table[["step_s"]])
    assert alone.quantiles({"s": "step_s"}, [0.5])["s"].tolist() == pytest.approx([0.5], abs=0.02)


def test_query_errors_show_their_place() -> None:
    data = Rows.wrap(drawn(1)).source
    assert (
        query(data, 'select rank, max(step_s) as "most" from rows group by rank order by rank')[
            "most"
        ].tolist()
        == drawn(1).groupby("rank")["step_s"].max().tolist()
    )
    with pytest.raises(UsageError, match=r"(?s)step_z.*LINE 1: select step_z from rows\n +\^"):
        query(data, "select step_z from rows")
    with pytest.raises(UsageError, match='query: syntax error at or near "rows"'):
        query(data, "select rank\nfrm rows")
    with pytest.raises(UsageError, match=r"foo does not exist.*; the only table is `rows`"):
        query(data, "select rank from foo")
    with pytest.raises(UsageError, match=r"nofunc does not exist!\Z"):
        query(data, "select nofunc(rank) from rows")


STRANGE = [
    "select * from read_text('{file}')",
    "select * from read_csv('{file}')",
    "copy (select 1) to '{file}'",
    "attach '{file}.db' as other",
    "load '{file}'",
    "set enable_external_access = true",
    "create table taken as select * from rows",
    "drop view rows",
    "select 1; select 2",
    "",
]


def test_column_of_decimals_is_a_measurement() -> None:
    rows = Rows.wrap(pa.table({"rank": [0, 0], "x": pa.array([3, -1], pa.decimal128(20))}))
    assert rows.numbers == ["x"]
    assert rows.aggregate({"mean": "avg(x)"})["mean"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("sql", "expected", "kind"),
    [
        ("select sum(x) as x from rows", [2**62 + 3], "int64"),
        ("select 2 * sum(x) as x from rows", [2**63 + 6], "uint64"),
        ("select sum(x) as x from rows group by y order by x", [3, 2**62], "int64"),
        (
            "select case when y then x::hugeint end as x from rows order by x",
            [1, 2, None],
            "Int64",
        ),
        (
            "select case when y then null else 4 * x::hugeint - 1 end as x from rows order by x",
            [2**64 - 1, None, None],
            "UInt64",
        ),
        (
            "select -x::hugeint as x from rows union all select 18446744073709551615 order by x",
            [-(2**62), -2, -1, 2**64 - 1],
            "object",
        ),
        ("select x * 0.5 as x from rows where y order by x", [0.5, 1.0], "float64"),
        ("select 0.1 as x, 0.2 as x from rows where y", [0.1, 0.1], "float64"),
        (
            "select 12345678901234567.5 as x from rows where y",
            [Decimal("12345678901234567.5")] * 2,
            "object",
        ),
        ("select sum(x) as x from rows where x < 0", [None], "Int64"),
        ("select null::decimal(10, 2) as x", [None], "float64"),
        ("select null::decimal(10, 0) as x", [None], "Int64"),
    ],
)
def test_integers_of_128_bits_and_decimals_are_exact(
    sql: str, expected: list[Any], kind: str
) -> None:
    rows = pa.table({"x": pa.array([1, 2, 2**62]), "y": [True, True, False]})
    table = query(Source(ds.dataset(rows)), sql)
    assert [None if pd.isna(value) else value for value in table["x"]] == expected
    assert table["x"].dtype == kind


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "select list(x order by x) as x from (select sum(x) as x from rows group by y)",
            [3, 2**62],
        ),
        ("select [9007199254740993::hugeint, null] as x", [2**53 + 1, None]),
        ("select [9007199254740993::bignum, null] as x", [2**53 + 1, None]),
        ("select array_value(9007199254740993::hugeint, 2) as x", [2**53 + 1, 2]),
        ("select [[9007199254740993::hugeint], null, []] as x", [[2**53 + 1], None, []]),
        ("select [[1, 2], [3, null]] as x", [[1, 2], [3, None]]),
        ("select [0.5, 12345678901234567.5] as x", [0.5, Decimal("12345678901234567.5")]),
        (
            "select [timestamp_ns '2020-01-01 00:00:00.000000001', null] as x",
            [pd.Timestamp(2020, 1, 1, nanosecond=1), None],
        ),
        ("select [date '2020-01-01'] as x", [pd.Timestamp(2020, 1, 1)]),
        ("select [{'x': 9007199254740993::hugeint}] as x", [{"x": 2**53 + 1}]),
    ],
)
def test_elements_of_lists_are_exact(sql: str, expected: list[Any]) -> None:
    rows = pa.table({"x": pa.array([1, 2, 2**62]), "y": [True, True, False]})
    [found] = query(Source(ds.dataset(rows)), sql)["x"]
    assert found == expected
    assert [*map(type, found)] == [*map(type, expected)]


@pytest.mark.parametrize("sql", STRANGE)
def test_query_cannot_read_or_write_files(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a,b\n1,2\n")
    try:
        found: Any = query(Rows.wrap(drawn(0)).source, sql.format(file=file))
    except UsageError as error:
        found = str(error)
        assert found.startswith("query: ")
    assert len(found) == 0 or isinstance(found, str)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert file.read_text() == "a,b\n1,2\n"


SPILL = """
import os, sys
import pandas as pd
from orchestrator.tables import database
from orchestrator.tables.query import Rows
database.MEMORY_LIMIT = "40MiB"
rows = Rows.wrap(pd.DataFrame({"iteration": range(10)}))
found = rows.query("select count(*) as c from (select a.range, hash(a.range) as h from range(3000000) a order by h)")
print(found["c"].iloc[0], *[name for name in os.listdir(sys.argv[1]) if str(os.getpid()) in name])
"""


def test_temporary_files_of_queries_are_removed(tmp_path: Path) -> None:
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


ROWS = pa.table(
    {
        "row": [0, 1, 2, 3],
        "rank": pa.array([0, 1, 0, 1], pa.int32()),
        "phase": ["train", "train", "val", "val"],
        "loss": [0.5, float("nan"), 2.0, None],
        "skipped": [True, False, None, False],
        "unseen": pa.nulls(4),
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("rank == 0 and phase = 'val'", [2]),
        ("not (rank == 0 or phase == 'val')", [1]),
        ("row in [0, 3, 7] or row in (1)", [0, 1, 3]),
        ("row between 1 and 2 -- a comment", [1, 2]),
        # Null meets nothing but the question for it.
        ("loss > 0", [0, 2]),
        ("not loss > 0", []),
        ("loss is null", [1, 3]),
        ("unseen = 1", []),
        ("not skipped", [1, 3]),
        ("\n rank == 0\n", [0, 2]),
        (" or ".join(["rank = 0"] * 4000), [0, 2]),
    ],
)
def test_condition_selects_its_rows(where: str, rows: list[int]) -> None:
    source = Rows.wrap(ROWS).source
    batches = read_matching_rows(source, ["row"], where)
    assert sorted(row for batch in batches for row in batch["row"].to_pylist()) == rows
    assert sorted(Rows(source, where).query("select row from rows")["row"]) == rows
    assert Rows(source, where).total == len(rows)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (" ", "must not be empty"),
        ("epok = 1 and rank = 0", "no column 'epok'"),
        ("los > 1", "did you mean 'loss'?"),
        ('phase = "train"', "Put text in single quotes"),
        ("rank == ", "syntax error"),
        ("rank = 0; rank = 1", "syntax error"),
        ("rank = 0; select 1", "semicolon"),
        ("loss > 5) or (rank = 0", "syntax error"),
        ("rank = 0 limit 1", "syntax error"),
        ("phase = 3", "Could not convert string 'train' to INT32"),
        ("0 < row < 2", "Chained comparisons are not supported"),
        ("getenv('HOME') = 'x'", "getenv does not exist"),
        ("(select count(*) from read_text('/etc/passwd')) > 0", "write an SQL condition"),
        (f"rank in [{'0, ' * 20_000}0]", "at most 50,000 characters, got 60,011"),
        ("not " * 5000 + "skipped", "expression depth limit"),
    ],
)
def test_condition_errors_are_explained(where: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        list(read_matching_rows(Rows.wrap(ROWS).source, ["row"], where))
    assert says in str(raised.value)
    with pytest.raises(UsageError):
        Rows(Rows.wrap(ROWS).source, where).query("select * from rows")


def test_columns_that_differ_only_in_case_are_an_error() -> None:
    rows = pa.table({"rank": [0], "lr": [0.1], "LR": [0.2]})
    for ask in (Rows.wrap, lambda rows: query(Source(ds.dataset(rows)), "select LR from rows")):
        with pytest.raises(
            UsageError, match="columns 'lr' and 'LR' differ only in case, which SQL ignores"
        ):
            ask(rows)


@pytest.mark.parametrize(
    "where",
    [
        "iteration % rank = 1",
        "iteration % 0 = 1",
        "error('mine')",
        "strptime(phase, '%Y') > now()",
        "json_extract(phase, '$.a') = 1",
        "cast(phase as int) = 1",
        "iteration = (select iteration from range(3) as numbers(number))",
        "repeat('x', 10000000000) = phase",
        "regexp_matches(phase, '(')",
    ],
)
def test_condition_that_fails_while_it_runs_is_quoted_in_a_line(where: str) -> None:
    table = pd.DataFrame({"rank": [0, 1], "iteration": [1, 2], "phase": "train", "loss": 0.5})
    reads: list[Callable[[], Any]] = [
        lambda: Rows(Rows.wrap(table).source, where).query("select * from rows"),
        lambda: Rows(Rows.wrap(table).source, where).aggregate({"n": "count(*)"}, ["rank"]),
        lambda: Rows(Rows.wrap(table).source, where).total,
        lambda: Rows(Rows.wrap(table).source, where).aggregate({"n": "count(*)"}, table="blocks"),
        lambda: list(read_matching_rows(Rows.wrap(table).source, ["loss"], where)),
    ]
    for read in reads:
        with pytest.raises(UsageError, match=r"\Awhere: [^\n]+\Z"):
            read()


def test_a_long_run_of_few_ranks_has_as_many_blocks_as_its_charts_need() -> None:
    """300,000 rows of two ranks are 2,000 blocks of 75 iterations on each rank."""
    iterations = 150_000
    table = pd.DataFrame(
        {
            "rank": np.repeat([0, 1], iterations),
            "iteration": np.tile(np.arange(iterations), 2),
            "loss": np.tile(np.arange(iterations, dtype=float), 2),
        }
    )
    rows = Rows.wrap(table)
    columns = {"blocks": "count(*)", "largest": "max(rows)", "total": 'sum("loss total")'}
    found = rows.aggregate(columns, ["rank"], table="blocks")
    assert found["blocks"].tolist() == [2000, 2000]
    assert found["largest"].tolist() == [75, 75]
    assert found["total"].tolist() == [iterations * (iterations - 1) / 2] * 2


def test_query_for_which_memory_is_used_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_small() -> Any:
        connection = open_database()
        connection.execute("set memory_limit = '40MiB'")
        connection.execute("set max_temp_directory_size = '1MiB'")
        return connection

    monkeypatch.setattr(user_query, "open_database", open_small)
    with pytest.raises(UsageError) as raised:
        query(Rows.wrap(ROWS).source, "select list(range) as l from range(100000000)")
    assert str(raised.value).startswith("the rows cannot be queried here: failed to allocate data")
    assert "\n" not in str(raised.value)
