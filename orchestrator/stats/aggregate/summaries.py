"""Summaries of a run's rows or hook costs, by column, rank, node, phase, span or hook."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from hooks.hook import WITHIN_ITERATION
from hooks.metrics.names import sort_phases
from orchestrator.errors import UsageError
from orchestrator.stats.aggregate.blocks import quoted
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.read.query import MOMENT, Rows


def _chosen(rows: Rows, asked: Sequence[str] | None, *keys: str) -> dict[str, str]:
    """Return the columns to summarize in SQL: those asked for but the `keys`, else all measurements.

    Raises UsageError for one without numbers.
    """
    names = rows.numbers if asked is None else [name for name in dict.fromkeys(asked) if name not in keys]
    texts = {name: f"count({quoted(name)})" for name in names if name in rows.texts}
    held = rows.aggregate(texts).iloc[0]
    if held.any():
        raise UsageError(
            f"column '{held.idxmax()}' holds no numbers to summarize; the rows themselves are --by row (load_stats)"
        )
    return {name: f"{quoted(name)}::double" for name in names}


def summarize(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each column: min, median, p95 and max over all rows, and the rank with the highest median.

    `asked`, here and below, are the columns; all measured ones if None. Raises UsageError for a wrong one.
    """
    columns = _chosen(rows, asked)
    names = [*columns]
    asked_ends = {f"{end} {name}": f"{end}({columns[name]})" for end in ("min", "max") for name in names}
    ends = rows.aggregate(asked_ends).iloc[0]
    table = pd.DataFrame({end: [ends[f"{end} {name}"] for name in names] for end in ("min", "max")}, names, dtype=float)
    if asked is None:
        table = table[table["max"].notna()]
    columns = {name: columns[name] for name in table.index}
    middle = rows.quantiles(columns, [0.5, 0.95])
    summary = {
        "min": table["min"],
        "median": middle.loc[0.5],
        "p95": middle.loc[0.95],
        "max": table["max"],
        "worst_rank": _worst_rank(rows, columns),
    }
    return pd.DataFrame(summary, index=table.index).rename_axis("column")


def summarize_ranks(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each rank: its node, number of rows, medians, and maxima of memory."""
    return _typical(rows, "rank", {"node": f"arg_min(node, {MOMENT})"}, _chosen(rows, asked, "rank", "node"), asked)


def summarize_nodes(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each node: its ranks, number of rows, medians, and maxima of memory."""
    table = _typical(
        rows, "node", {"first": "min(rank)", "ranks": "count(distinct rank)"}, _chosen(rows, asked, "node"), asked
    )
    return table.sort_values("first", kind="stable").drop(columns="first")


def summarize_trials(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each trial: its ranks, number of rows, medians, and maxima of memory."""
    return _typical(rows, "trial", {"ranks": "count(distinct rank)"}, _chosen(rows, asked, "trial"), asked)


def all_seconds(rows: Rows) -> float:
    """Return the time of all iterations of all ranks; NaN if none was timed."""
    return float(rows.aggregate({"all": "sum(step_s)"})["all"].iloc[0]) if "step_s" in rows.columns else np.nan


def _typical(
    rows: Rows, key: str, first: Mapping[str, str], columns: Mapping[str, str], asked: Sequence[str] | None
) -> pd.DataFrame:
    # Ranks differ in their loss by chance.
    shown = {name: expression for name, expression in columns.items() if asked or name != "loss"}
    peaks = {name: f"max({expression})" for name, expression in shown.items() if name.endswith("_bytes")}
    medians = {name: expression for name, expression in shown.items() if name not in peaks}
    table = rows.aggregate({**first, "rows": "count(*)", **peaks}, [key]).join(rows.medians(medians, key))
    return table[[*first, "rows", *(name for name in shown if asked or table[name].notna().any())]]


def summarize_phases(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each phase: number of rows, and medians over all ranks."""
    medians = rows.medians(_chosen(rows, asked, "phase"), "phase")
    table = rows.aggregate({"rows": "count(*)"}, ["phase"]).join(
        medians if asked else medians.dropna(axis=1, how="all")
    )
    return table.loc[sort_phases(table.index)]


def summarize_spans(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each span: total seconds, share, median and p95 of an iteration, and rank of the highest median."""
    for name in asked or ():
        if name not in SPANS:
            raise UsageError(f"column '{name}' is not a span of the iteration; the spans are {', '.join(SPANS)}")
    spans = {name: name for name in SPANS if name in (rows.columns if asked is None else asked)}
    sums = (
        rows.aggregate({name: f"sum({name})" for name in ("step_s", *spans) if name in rows.columns})
        .iloc[0]
        .fillna(0.0)
    )
    middle = rows.quantiles(spans, [0.5, 0.95])
    table = pd.DataFrame({"seconds": sums[[*spans]]}, index=[*spans], dtype=float)
    table["share"] = table["seconds"] / sums.get("step_s", np.nan)
    table["median_s"], table["p95_s"], table["worst_rank"] = middle.loc[0.5], middle.loc[0.95], _worst_rank(rows, spans)
    return table.rename_axis("span").sort_values("seconds", ascending=False)


def _worst_rank(rows: Rows, columns: Mapping[str, str]) -> pd.Series:
    return rows.medians(columns, "rank").dropna(axis=1, how="all").idxmax().reindex([*columns])


def summarize_hooks(costs: pd.DataFrame, all_s: float) -> pd.DataFrame:
    """Summarize each hook and event: calls, seconds, their share of `all_s` (all iterations), and the costliest rank.

    If `costs` has each hook's `every`, `every_for_1_percent` is the `every` that would cost at most 1 % of the time.
    """
    grouped = costs.groupby(["hook", "event"])
    table = grouped[["calls", "seconds"]].sum()
    table["share"] = table["seconds"] / all_s
    table["microseconds_per_call"] = table["seconds"] / table["calls"] * 1e6
    table["costliest_rank"] = costs.loc[grouped["seconds"].idxmax()].set_index(["hook", "event"])["rank"]
    if "every" in costs:
        every = grouped["every"].first()
        pairs = zip(table.index, table["share"], strict=True)
        cheaper = [cheaper_every(key[1], every[key], share) for key, share in pairs]
        table["every_for_1_percent"] = pd.Series(cheaper, table.index, dtype=object)
    return table.sort_values("seconds", ascending=False)


def cheaper_every(event: str, every: Any, share: float, most: float = 0.01) -> str | None:
    """Return the `every` with which a hook takes at most a share `most` of the time at an event; None if it does now.

    `every` is the hook's present one, such as `10` or `100 steps`, and `share` its present cost. Events outside of
    iterations and hooks without `every` give None too.
    """
    match = re.fullmatch(r"\s*(\d+)\s*(\w*)\s*", str(every))
    if match is None or event not in WITHIN_ITERATION or not share > most or not int(match[1]):
        return None
    unit = f" {match[2].removesuffix('s')}s" if match[2] else ""
    return f"{ceil(round(int(match[1]) * share / most, 6))}{unit}"
