"""Tables: what every rank recorded, as DataFrames in which each row that counts stands once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.checkpoint.position import Stage
from orchestrator.storage import Storage

KEY = ["rank", "phase", "epoch", "iteration"]
FIRST = ["rank", "node", "phase", "epoch", "iteration", "step"]
COMPACTED = {"rows": "stats.parquet", "costs": "hooks.parquet"}
"""Where a finished run keeps each table."""

COUNTERS = {"rank", "epoch", "iteration", "step", "samples", "batch_size", "attempt"}


def read_batches(stream: bytes) -> list[pa.RecordBatch]:
    """The whole batches of an Arrow stream; what a kill cut short at its end is left out."""
    batches = []
    try:
        reader = pa.ipc.open_stream(BytesIO(stream))
        while True:
            batches.append(reader.read_next_batch())
    except (StopIteration, pa.ArrowInvalid, OSError):
        return batches


def read_recorded(storage: Storage, table: str, pushed: Iterable[bytes] = ()) -> pa.Table | None:
    """Every row recorded for a run: from its compacted file, its ranks' files, and what was pushed to the collector.

    `storage` is the run's folder, `table` is `rows` or `costs`. A row that came twice is here twice.
    """
    tables = []
    if storage.exists(COMPACTED[table]):
        tables.append(pq.read_table(BytesIO(storage.read(COMPACTED[table]))))
    batches = [batch for file in _files(storage, table) for batch in read_batches(storage.read(file))]
    batches += [batch for stream in pushed for batch in read_batches(stream)]
    tables += [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def _files(storage: Storage, table: str) -> list[str]:
    return [
        f"stats/{attempt}/{rank}/{file}"
        for attempt in storage.names("stats")
        if attempt.startswith("attempt=")
        for rank in storage.names(f"stats/{attempt}")
        if rank.startswith("rank=")
        for file in storage.names(f"stats/{attempt}/{rank}")
        if file.startswith(f"{table}-") and file.endswith(".arrow")
    ]


def superseded(rows: pd.DataFrame, attempts: Sequence[Mapping[str, Any]]) -> pd.Series:
    """Which rows were done again by a later attempt, which began at a checkpoint before them.

    A training row is superseded where its iteration lies past a later attempt's start; an evaluation row where the
    training samples seen by then do, or where the checkpoint was made after as many and before the validation. Steps
    would not do: micro-batches share one, and so does an iteration whose step was left out.
    """
    gone = pd.Series(False, index=rows.index)
    training = rows["phase"] == "train"
    for attempt in attempts:
        start = attempt["position"] or {"iteration": 0, "samples": 0, "stage": Stage.TRAIN}
        earlier = rows["attempt"] < attempt["attempt"]
        past = training & (rows["iteration"] > start["iteration"])
        past |= ~training & (rows["samples"] > start["samples"])
        if start["stage"] <= Stage.TRAINED:
            past |= ~training & (rows["samples"] == start["samples"])
        past |= rows["phase"] == "test"
        gone |= earlier & past
    return gone


def stats_table(recorded: pa.Table | None, attempts: Sequence[Mapping[str, Any]], *, keep_superseded: bool = False) -> pd.DataFrame:
    """One row per rank, phase, epoch and iteration of the training that counted."""
    if recorded is None:
        return pd.DataFrame(columns=FIRST)
    rows: pd.DataFrame = recorded.to_pandas()
    rows["superseded"] = superseded(rows, attempts)
    rows = rows.sort_values(["attempt", *KEY], kind="stable").drop_duplicates(["attempt", *KEY])
    if not keep_superseded:
        rows = rows[~rows["superseded"]].drop(columns="superseded").drop_duplicates(KEY, keep="last")
    rows = rows.sort_values(["phase", "epoch", "iteration", "rank"], key=_phase_order, kind="stable").reset_index(drop=True)
    for name in ("phase", "node"):
        rows[name] = rows[name].astype("category")
    return rows[FIRST + [name for name in rows.columns if name not in FIRST]]


def _phase_order(column: pd.Series) -> pd.Series:
    return column.map({"train": 0, "val": 1, "test": 2}) if column.name == "phase" else column


def costs_table(recorded: pa.Table | None, attempts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What each hook cost at each event on each rank: calls and seconds."""
    columns = ["rank", "hook", "event", "calls", "seconds"]
    if recorded is None:
        return pd.DataFrame(columns=columns)
    rows: pd.DataFrame = recorded.to_pandas().drop_duplicates()
    for attempt in attempts:
        start = attempt["position"] or {"iteration": 0}
        rows = rows[~((rows["attempt"] < attempt["attempt"]) & (rows["iteration"] > start["iteration"]))]
    return rows.groupby(["rank", "hook", "event"], as_index=False)[["calls", "seconds"]].sum()[columns]


def measured(stats: pd.DataFrame) -> list[str]:
    """The columns that hold measurements: numbers that do not name the row."""
    return [name for name in stats.select_dtypes(include=np.number).columns if name not in COUNTERS]


def summarize(stats: pd.DataFrame, phase: str = "train") -> pd.DataFrame:
    """Per column: min, median, p95 and max over the rows of all ranks, and the rank whose median is highest."""
    rows = stats[stats["phase"] == phase]
    columns = [name for name in measured(rows) if rows[name].notna().any()]
    table = rows[columns].quantile([0, 0.5, 0.95, 1]).T
    table.columns = pd.Index(["min", "median", "p95", "max"])
    by_rank = rows.groupby("rank")[columns].median()
    table["worst_rank"] = by_rank.idxmax() if len(by_rank) else np.nan
    table.index.name = "column"
    return table


def by_rank(stats: pd.DataFrame, phase: str = "train") -> pd.DataFrame:
    """Per rank: its node, rows, and the median of each span and the maximum of each memory column."""
    rows = stats[stats["phase"] == phase]
    columns = [name for name in measured(rows) if name != "loss" and rows[name].notna().any()]
    how: dict[str, Any] = {name: "max" if name.endswith("_bytes") else "median" for name in columns}
    grouped = rows.groupby("rank")
    table = grouped.agg(how)
    table.insert(0, "rows", grouped.size())
    table.insert(0, "node", grouped["node"].first().astype(str))
    return table


def by_phase(stats: pd.DataFrame) -> pd.DataFrame:
    """Per phase: rows, samples, and the median of each measured column over all ranks."""
    grouped = stats.groupby("phase", observed=True)
    columns = [name for name in measured(stats) if stats[name].notna().any()]
    table = grouped[columns].median()
    table.insert(0, "rows", grouped.size())
    return table


def by_hook(costs: pd.DataFrame, stats: pd.DataFrame) -> pd.DataFrame:
    """Per hook and event: calls, seconds over all ranks, their share of all iterations' time, and the costliest rank."""
    grouped = costs.groupby(["hook", "event"])
    table = grouped[["calls", "seconds"]].sum()
    total = stats["step_s"].sum() if "step_s" in stats else np.nan
    table["share"] = table["seconds"] / total
    table["microseconds_per_call"] = table["seconds"] / table["calls"] * 1e6
    worst = costs.loc[grouped["seconds"].idxmax()].set_index(["hook", "event"])["rank"]
    table["costliest_rank"] = worst
    return table.sort_values("seconds", ascending=False)


def compact(storage: Storage, attempts: Sequence[Mapping[str, Any]], pushed: Mapping[str, Sequence[bytes]] | None = None) -> None:
    """Joins what the ranks wrote into `stats.parquet` and `hooks.parquet`, then removes the ranks' files. Driver.

    Superseded rows stay, marked. A kill in between leaves rows in both places; reading drops the doubles.
    """
    for table in ("rows", "costs"):
        recorded = read_recorded(storage, table, (pushed or {}).get(table, ()))
        if recorded is None:
            continue
        if table == "rows":
            # As plain text, so that the file can be joined with what the ranks wrote.
            frame = stats_table(recorded, attempts, keep_superseded=True).astype({"phase": str, "node": str})
            recorded = pa.Table.from_pandas(frame, preserve_index=False)
        files = _files(storage, table)
        with storage.create(COMPACTED[table]) as file:
            pq.write_table(recorded, file)
        for name in files:
            storage.delete(name)
