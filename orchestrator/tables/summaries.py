"""Summaries of a run's rows, by column, rank, node, phase or span."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from hooks.metrics.names import sort_phases
from orchestrator.column_names import SPANS
from orchestrator.errors import UsageError
from orchestrator.tables.database import quote
from orchestrator.tables.query import Rows

_LEADING_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "rank": {"node": "string_agg(distinct node, ', ' order by node)"},
    "node": {"ranks": "count(distinct rank)"},
    "trial": {"ranks": "count(distinct rank)"},
    "phase": {},
}
"""Leading columns of the table for each key, as SQL aggregates."""


def _select_numeric_columns(
    rows: Rows, selected: Sequence[str] | None, *keys: str
) -> dict[str, str]:
    """Return the columns to summarize as SQL expressions by name: `selected` or all measurements,
    without `keys`.

    Raises UsageError for a column of text.
    """
    candidates = dict.fromkeys(rows.numbers if selected is None else selected)
    names = [name for name in candidates if name not in keys]
    texts = {name: f"count({quote(name)})" for name in names if name in rows.texts}
    counts = rows.aggregate(texts).iloc[0]
    if counts.any():
        raise UsageError(
            f"column '{counts.idxmax()}' holds text, which has no median; choose columns of"
            " numbers, or --by row"
        )
    return {name: f"{quote(name)}::double" for name in names}


def summarize(rows: Rows, selected: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each column: min, median, p95 and max over all rows, and the rank with the highest
    median.

    Here and below, `selected` are the columns; None selects all measurements. Raises UsageError for
    an invalid one.
    """
    columns = _select_numeric_columns(rows, selected)
    names = [*columns]
    expressions = {}
    for end in ("min", "max"):
        expressions.update({f"{end} {name}": f"{end}({columns[name]})" for name in names})
    extremes = rows.aggregate(expressions).to_numpy(dtype=float).reshape(2, -1)
    table = pd.DataFrame(extremes.T, names, ["min", "max"])
    if selected is None:
        table = table.dropna(subset=["max"])
    columns = {name: columns[name] for name in table.index}
    middle = rows.quantiles(columns, [0.5, 0.95])
    table["median"] = middle.loc[0.5]
    table["p95"] = middle.loc[0.95]
    table["worst_rank"] = _find_worst_rank(rows, columns)
    return table[["min", "median", "p95", "max", "worst_rank"]].rename_axis("column")


def summarize_by(key: str, rows: Rows, selected: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each rank, node, trial or phase: its number of rows, medians, and maxima of memory.

    Nodes are in the order of their ranks.
    """
    leading = _LEADING_COLUMNS[key]
    columns = _select_numeric_columns(rows, selected, key, *leading, "rows")
    if key != "phase" and not selected:
        # The loss of ranks and nodes differs by chance.
        columns.pop("loss", None)
    peaks = {}
    medians = {}
    for name, value in columns.items():
        if name.endswith("_bytes"):
            peaks[name] = f"max({value})"
        else:
            medians[name] = value
    groups = rows.aggregate({**leading, "rows": "count(*)", **peaks}, [key])
    table = groups.join(rows.medians(medians, key))
    if key == "phase":
        table = table.loc[sort_phases(table.index)]
    elif key == "node":
        first_ranks = rows.aggregate({"first": "min(rank)"}, [key])["first"]
        table = table.loc[first_ranks.sort_values().index]

    shown = [name for name in columns if selected or table[name].notna().any()]
    return table[[*leading, "rows", *shown]]


def sum_seconds(rows: Rows) -> float:
    """Return the time of all iterations on all ranks, in seconds; NaN if none was timed."""
    if "step_s" not in rows.columns:
        return math.nan
    return float(rows.aggregate({"all": "sum(step_s)"})["all"].iloc[0])


def summarize_spans(rows: Rows, selected: Sequence[str] | None = None) -> pd.DataFrame:
    """Summarize each span: total seconds, share, median and p95 of an iteration, and rank of the
    highest median."""
    for name in selected or ():
        if name not in SPANS:
            raise UsageError(
                f"column '{name}' is not a span of the iteration; the spans are {', '.join(SPANS)}"
            )
    known = rows.columns if selected is None else selected
    spans = {name: name for name in SPANS if name in known}
    seconds = rows.aggregate({name: f"sum({name})" for name in spans}).iloc[0].fillna(0.0)
    table = pd.DataFrame({"seconds": seconds}, index=[*spans], dtype=float)
    measured = {}
    if "step_s" in rows.columns:
        measured = {name: f"sum(step_s) filter ({name} is not null)" for name in spans}
    table["share"] = table["seconds"] / rows.aggregate(measured).iloc[0]
    middle = rows.quantiles(spans, [0.5, 0.95])
    table["median_s"] = middle.loc[0.5]
    table["p95_s"] = middle.loc[0.95]
    table["worst_rank"] = _find_worst_rank(rows, spans)
    return table.rename_axis("span").sort_values("seconds", ascending=False)


def _find_worst_rank(rows: Rows, columns: Mapping[str, str]) -> pd.Series:
    return rows.medians(columns, "rank").dropna(axis=1, how="all").idxmax().reindex([*columns])
