"""Summaries: what the rows of a run or its hooks' costs come to, by column, rank, node, phase, span or hook."""

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
    """The columns to summarize, in SQL: those asked for beside the table's own `keys`, else all that may be
    measurements. Raises UsageError for one that holds no numbers."""
    names = rows.numbers if asked is None else [name for name in dict.fromkeys(asked) if name not in keys]
    texts = {name: f"count({quoted(name)})" for name in names if name in rows.texts}
    held = rows.aggregate(texts).iloc[0]
    if held.any():
        raise UsageError(
            f"column '{held.idxmax()}' holds no numbers to summarize; the rows themselves are --by row (load_stats)"
        )
    return {name: f"{quoted(name)}::double" for name in names}


def summarize(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per column: min, median, p95 and max over the rows of all ranks, and the rank whose median is highest. `asked`,
    here and below, are the columns to show, all those measured where it is None; raises UsageError for one that cannot
    be."""
    found = _chosen(rows, asked)
    names = [*found]
    ends = rows.aggregate({f"{end} {name}": f"{end}({found[name]})" for end in ("min", "max") for name in names}).iloc[
        0
    ]
    table = pd.DataFrame({end: [ends[f"{end} {name}"] for name in names] for end in ("min", "max")}, names, dtype=float)
    if asked is None:
        table = table[table["max"].notna()]
    found = {name: found[name] for name in table.index}
    middle = rows.quantiles(found, [0.5, 0.95])
    columns = {
        "min": table["min"],
        "median": middle.loc[0.5],
        "p95": middle.loc[0.95],
        "max": table["max"],
        "worst_rank": _worst_rank(rows, found),
    }
    return pd.DataFrame(columns, index=table.index).rename_axis("column")


def by_rank(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per rank: its node, rows, and the median of each span and the maximum of each memory column."""
    return _typical(rows, "rank", {"node": f"arg_min(node, {MOMENT})"}, _chosen(rows, asked, "rank", "node"), asked)


def by_node(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per node: its ranks, rows, and the median of each span and the maximum of each memory column."""
    table = _typical(
        rows, "node", {"first": "min(rank)", "ranks": "count(distinct rank)"}, _chosen(rows, asked, "node"), asked
    )
    return table.sort_values("first", kind="stable").drop(columns="first")


def by_trial(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per trial: its ranks, rows, and the median of each span and the maximum of each memory column."""
    return _typical(rows, "trial", {"ranks": "count(distinct rank)"}, _chosen(rows, asked, "trial"), asked)


def all_seconds(rows: Rows) -> float:
    """The time of all iterations of all ranks; NaN where none was timed."""
    return float(rows.aggregate({"all": "sum(step_s)"})["all"].iloc[0]) if "step_s" in rows.columns else np.nan


def _typical(
    rows: Rows, key: str, first: Mapping[str, str], found: Mapping[str, str], asked: Sequence[str] | None
) -> pd.DataFrame:
    """The loss, of which each rank has its own by chance, is among them where it was asked for."""
    shown = {name: expression for name, expression in found.items() if asked or name != "loss"}
    peaks = {name: f"max({expression})" for name, expression in shown.items() if name.endswith("_bytes")}
    medians = {name: expression for name, expression in shown.items() if name not in peaks}
    table = rows.aggregate({**first, "rows": "count(*)", **peaks}, [key]).join(rows.medians(medians, key))
    return table[[*first, "rows", *(name for name in shown if asked or table[name].notna().any())]]


def by_phase(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per phase: rows, and the median of each measured column over all ranks."""
    medians = rows.medians(_chosen(rows, asked, "phase"), "phase")
    table = rows.aggregate({"rows": "count(*)"}, ["phase"]).join(
        medians if asked else medians.dropna(axis=1, how="all")
    )
    return table.loc[sort_phases(table.index)]


def by_span(rows: Rows, asked: Sequence[str] | None = None) -> pd.DataFrame:
    """Per span of the iteration: seconds over all rows, their share of all iterations' time, median and p95 of an
    iteration, and the rank whose median is highest."""
    for name in asked or ():
        if name not in SPANS:
            raise UsageError(f"column '{name}' is no span of the iteration; there are {', '.join(SPANS)}")
    found = {name: name for name in SPANS if name in (rows.columns if asked is None else asked)}
    sums = (
        rows.aggregate({name: f"sum({name})" for name in ("step_s", *found) if name in rows.columns})
        .iloc[0]
        .fillna(0.0)
    )
    middle = rows.quantiles(found, [0.5, 0.95])
    table = pd.DataFrame({"seconds": sums[[*found]]}, index=[*found], dtype=float)
    table["share"] = table["seconds"] / sums.get("step_s", np.nan)
    table["median_s"], table["p95_s"], table["worst_rank"] = middle.loc[0.5], middle.loc[0.95], _worst_rank(rows, found)
    return table.rename_axis("span").sort_values("seconds", ascending=False)


def _worst_rank(rows: Rows, found: Mapping[str, str]) -> pd.Series:
    """By column, the rank whose median is highest; NaN where there is none."""
    return rows.medians(found, "rank").dropna(axis=1, how="all").idxmax().reindex([*found])


def by_hook(costs: pd.DataFrame, all_s: float) -> pd.DataFrame:
    """Return calls and seconds over all ranks by hook and event, their share of `all_s`, and the costliest rank.

    `all_s` is the time of all iterations. Where `costs` has each hook's `every`, `every_for_1_percent` is the one with
    which the hook would take at most 1 % of the time at that event.
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
    """Return the `every` with which a hook takes at most a share `most` of the time at an event.

    `every` is the hook's own, as an experiment says it: `10` or `100 steps`, and `share` is what it takes with it.
    Return None where it takes no more, is off, has none, or acts at the event beside the iterations.
    """
    match = re.fullmatch(r"\s*(\d+)\s*(\w*)\s*", str(every))
    if match is None or event not in WITHIN_ITERATION or not share > most or not int(match[1]):
        return None
    unit = f" {match[2].removesuffix('s')}s" if match[2] else ""
    return f"{ceil(round(int(match[1]) * share / most, 6))}{unit}"
