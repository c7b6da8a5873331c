"""Summaries: what a table of rows or of hooks' costs comes to, by column, rank, node, phase, span or hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.errors import UsageError
from orchestrator.stats.spans import SPANS

COUNTERS = {"rank", "epoch", "iteration", "step", "samples", "batch_size", "attempt"}


def measured_columns(rows: pd.DataFrame) -> list[str]:
    """The columns that hold measurements: numbers that do not name the row, somewhere not empty."""
    names = rows.select_dtypes(include=np.number).columns
    return [name for name in names if name not in COUNTERS and rows[name].notna().any()]


def _chosen(rows: pd.DataFrame, asked: Sequence[str] | None, *keys: str) -> list[str]:
    """The columns to summarize: those asked for beside the table's own `keys`, else what was measured. Raises UsageError for one
    that holds no numbers."""
    if asked is None:
        return measured_columns(rows)
    for name in (names := [name for name in dict.fromkeys(asked) if name not in keys]):
        if rows[name].notna().any() and not pd.api.types.is_numeric_dtype(rows[name]):
            raise UsageError(f"column '{name}' holds no numbers to summarize; the rows themselves are --by row (load_stats)")
    return names


def summarize(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per column: min, median, p95 and max over the rows of all ranks, and the rank whose median is highest. `asked`, here and
    below, are the columns to show, all those measured where it is None; raises UsageError for one that cannot be."""
    columns = _chosen(rows, asked)
    rows = _as_numbers(rows, columns)
    table = rows[columns].quantile([0, 0.5, 0.95, 1]).T
    table.columns = pd.Index(["min", "median", "p95", "max"])
    return table.assign(worst_rank=_worst_rank(rows, columns)).rename_axis("column")


def by_rank(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per rank: its node, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(rows, "rank", _chosen(rows, asked, "rank", "node"), asked)
    table.insert(0, "node", rows.groupby("rank")["node"].first().astype(str))
    return table


def by_node(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per node: its ranks, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(rows, "node", _chosen(rows, asked, "node"), asked)
    table.insert(0, "ranks", rows.groupby("node", observed=True)["rank"].nunique())
    return table


def by_trial(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per trial: its ranks, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(rows, "trial", _chosen(rows, asked, "trial"), asked)
    table.insert(0, "ranks", rows.groupby("trial")["rank"].nunique())
    return table


def _typical(rows: pd.DataFrame, key: str, columns: list[str], asked: Sequence[str] | None) -> pd.DataFrame:
    """The loss, of which each rank has its own by chance, is among them where it was asked for."""
    grouped = _as_numbers(rows, columns).groupby(key, observed=True)
    how: dict[str, Any] = {name: "max" if name.endswith("_bytes") else "median" for name in columns if asked or name != "loss"}
    table = grouped.agg(how) if how else grouped.size().to_frame()[[]]
    table.insert(0, "rows", grouped.size())
    return table


def by_phase(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per phase: rows, and the median of each measured column over all ranks."""
    columns = _chosen(rows, asked, "phase")
    grouped = _as_numbers(rows, columns).groupby("phase", observed=True)
    table = grouped[columns].median()
    table.insert(0, "rows", grouped.size())
    return table


def by_span(rows: pd.DataFrame, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per span of the iteration: seconds over all rows, their share of all iterations' time, median and p95 of an
    iteration, and the rank whose median is highest."""
    for name in asked or ():
        if name not in SPANS:
            raise UsageError(f"column '{name}' is no span of the iteration; there are {', '.join(SPANS)}")
    columns = [name for name in SPANS if name in (rows if asked is None else asked)]
    table = pd.DataFrame({"seconds": rows[columns].sum()})
    table["share"] = table["seconds"] / (rows["step_s"].sum() if "step_s" in rows else np.nan)
    table[["median_s", "p95_s"]] = rows[columns].quantile([0.5, 0.95]).T.to_numpy()
    table["worst_rank"] = _worst_rank(rows, columns)
    return table.rename_axis("span").sort_values("seconds", ascending=False)


def _worst_rank(rows: pd.DataFrame, columns: list[str]) -> Any:
    """By column, the rank whose median is highest; NaN where there is no row."""
    return rows.groupby("rank")[columns].median().dropna(axis=1, how="all").idxmax().reindex(columns) if len(rows) else np.nan


def _as_numbers(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows with columns that are empty all the way down, and so of no type, as columns of numbers."""
    return rows.astype({name: float for name in columns if rows[name].isna().all()})


def by_hook(costs: pd.DataFrame, stats: pd.DataFrame) -> pd.DataFrame:
    """Per hook and event: calls, seconds over all ranks, their share of all iterations' time, and the costliest rank."""
    grouped = costs.groupby(["hook", "event"])
    table = grouped[["calls", "seconds"]].sum()
    table["share"] = table["seconds"] / (stats["step_s"].sum() if "step_s" in stats else np.nan)
    table["microseconds_per_call"] = table["seconds"] / table["calls"] * 1e6
    table["costliest_rank"] = costs.loc[grouped["seconds"].idxmax()].set_index(["hook", "event"])["rank"]
    return table.sort_values("seconds", ascending=False)
