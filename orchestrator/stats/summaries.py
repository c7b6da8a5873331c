"""Summaries: what a table of rows or of hooks' costs comes to, by column, rank, node, phase, span or hook."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats.spans import SPANS

COUNTERS = {"rank", "epoch", "iteration", "step", "samples", "batch_size", "attempt"}


def measured_columns(rows: pd.DataFrame) -> list[str]:
    """The columns that hold measurements: numbers that do not name the row, somewhere not empty."""
    names = rows.select_dtypes(include=np.number).columns
    return [name for name in names if name not in COUNTERS and rows[name].notna().any()]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """Per column: min, median, p95 and max over the rows of all ranks, and the rank whose median is highest."""
    columns = measured_columns(rows)
    table = rows[columns].quantile([0, 0.5, 0.95, 1]).T
    table.columns = pd.Index(["min", "median", "p95", "max"])
    return table.assign(worst_rank=_worst_rank(rows, columns)).rename_axis("column")


def by_rank(rows: pd.DataFrame) -> pd.DataFrame:
    """Per rank: its node, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(rows, "rank")
    table.insert(0, "node", rows.groupby("rank")["node"].first().astype(str))
    return table


def by_node(rows: pd.DataFrame) -> pd.DataFrame:
    """Per node: its ranks, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(rows, "node")
    table.insert(0, "ranks", rows.groupby("node", observed=True)["rank"].nunique())
    return table


def _typical(rows: pd.DataFrame, key: str) -> pd.DataFrame:
    grouped = rows.groupby(key, observed=True)
    how: dict[str, Any] = {name: "max" if name.endswith("_bytes") else "median" for name in measured_columns(rows) if name != "loss"}
    table = grouped.agg(how) if how else grouped.size().to_frame()[[]]
    table.insert(0, "rows", grouped.size())
    return table


def by_phase(rows: pd.DataFrame) -> pd.DataFrame:
    """Per phase: rows, and the median of each measured column over all ranks."""
    grouped = rows.groupby("phase", observed=True)
    table = grouped[measured_columns(rows)].median()
    table.insert(0, "rows", grouped.size())
    return table


def by_span(rows: pd.DataFrame) -> pd.DataFrame:
    """Per span of the iteration: seconds over all rows, their share of all iterations' time, median and p95 of an
    iteration, and the rank whose median is highest."""
    columns = [name for name in SPANS if name in rows]
    table = pd.DataFrame({"seconds": rows[columns].sum()})
    table["share"] = table["seconds"] / (rows["step_s"].sum() if "step_s" in rows else np.nan)
    table[["median_s", "p95_s"]] = rows[columns].quantile([0.5, 0.95]).T.to_numpy()
    table["worst_rank"] = _worst_rank(rows, columns)
    return table.rename_axis("span").sort_values("seconds", ascending=False)


def _worst_rank(rows: pd.DataFrame, columns: list[str]) -> Any:
    """By column, the rank whose median is highest; NaN where there is no row."""
    return rows.groupby("rank")[columns].median().idxmax() if len(rows) else np.nan


def by_hook(costs: pd.DataFrame, stats: pd.DataFrame) -> pd.DataFrame:
    """Per hook and event: calls, seconds over all ranks, their share of all iterations' time, and the costliest rank."""
    grouped = costs.groupby(["hook", "event"])
    table = grouped[["calls", "seconds"]].sum()
    table["share"] = table["seconds"] / (stats["step_s"].sum() if "step_s" in stats else np.nan)
    table["microseconds_per_call"] = table["seconds"] / table["calls"] * 1e6
    table["costliest_rank"] = costs.loc[grouped["seconds"].idxmax()].set_index(["hook", "event"])["rank"]
    return table.sort_values("seconds", ascending=False)
