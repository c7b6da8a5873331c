"""Time per rank, span, iteration and hook."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.report import page
from orchestrator.report.binning import Grid, group_neighbours, worst_of_bins
from orchestrator.report.charts.frame import choice
from orchestrator.report.charts.heat import heat_map
from orchestrator.report.charts.stacks import stacks
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.tables import Share, table
from orchestrator.report.views.learning import Reports, chart, metrics_of
from orchestrator.stats.aggregate.blocks import OWN_WORK, known, total
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.aggregate.summaries import summarize_hooks, summarize_spans
from orchestrator.stats.insight.gradient_syncs import WAIT
from orchestrator.stats.insight.iteration_sample import IterationSample
from orchestrator.stats.read.query import TRAINING, Rows

LAST = ("backward_s", WAIT)
ORDER = (*(name for name in SPANS if name not in LAST), *LAST)
"""Parts of a bar from the lowest: the backward pass and the wait come last."""
KINDS = {name: place for place, name in enumerate(ORDER)}
BARS, CELLS_DOWN, CELLS_ACROSS = 64, 96, 200
"""Bars, and cells of a heat map."""


def spans(rows: Rows, sample: IterationSample, reports: Reports) -> page.Section:
    """The spans of each rank, the ranks' iterations, and the speed as reported. `rows` are the run's, `sample` what
    `look` gives of them."""
    recorded = [name for name in ("step_s", *SPANS) if name in rows.columns]
    sums = rows.aggregate({name: total(name) for name in recorded}, ["rank"], TRAINING, rows.blocks)
    means = (sums / rows.aggregate({name: known(name) for name in recorded}, ["rank"], TRAINING, rows.blocks)).dropna(
        axis=1, how="all"
    )
    if "step_s" not in means:
        return page.Section("time", "Time", "No training iteration was timed.")
    timed = {name: phases for name, phases in metrics_of(reports).items() if name.endswith("_s")}
    speed = [chart(name, phases, reports) for name, phases in timed.items()]
    charts = element("div", *speed, class_="charts") if any(speed) else None
    return page.Section("time", "Time", joined([_stacks(means), _spans(sample, sums.sum()), _heat_maps(rows), charts]))


def _stacks(means: pd.DataFrame) -> Markup:
    spans = [name for name in ORDER if name in means]
    if not spans:
        return page.empty_note("Spans were not recorded: the hook perf_stats is off.")
    means = means[spans].set_axis(means.index.map(str))
    note = (
        f"Mean iteration of each rank. Ranks wait for the slowest in {WAIT}, or in backward_s if that was not measured."
        " A slow rank has long other spans."
    )
    if len(means) > BARS:
        groups = group_neighbours(len(means), BARS)
        means = means.loc[
            means[[name for name in spans if name != (WAIT if WAIT in spans else "backward_s")]]
            .sum(axis=1)
            .groupby(groups)
            .idxmax()
        ]
        sizes = " or ".join(map(str, np.unique(np.bincount(groups))))
        note += f" {len(groups):,} ranks: each bar is the one of {sizes} neighbours with the most own work."
    return stacks("Time per iteration", means, KINDS, "rank", note)


def _spans(sample: IterationSample, seconds: pd.Series[float]) -> Markup | None:
    if not {*SPANS} & {*seconds.index}:
        return None
    headings = {
        "span": "span",
        "median_s": "median",
        "p95_s": "p95",
        "seconds_s": "all ranks",
        "rank": "rank of highest median",
        "share": "share of the time",
    }
    summary = summarize_spans(Rows.of(sample.rows))
    summary["seconds"] = seconds[summary.index]
    summary["share"] = summary["seconds"] / seconds["step_s"]
    summary = (
        summary.sort_values("seconds", ascending=False)
        .reset_index()
        .rename(columns={"seconds": "seconds_s", "worst_rank": "rank"})
    )
    summary = summary.astype({"rank": "Int64"}).astype(object)
    summary["share"] = summary["share"].map(Share)
    cells = summary[[*headings]].itertuples(index=False, name=None)
    drawn = table(
        "Spans over all ranks and training iterations", [*headings], cells, headings=headings, class_="sortable shares"
    )
    if sample.share == 1:
        return drawn
    seen = f"Median, p95 and rank are from {len(sample.rows):,} rows, {sample.share:.1%} of the iterations."
    return joined([drawn, page.empty_note(seen)])


def _heat_maps(rows: Rows) -> Markup:
    measures = [OWN_WORK, *(name for name in ("step_s", *ORDER) if name in rows.columns)]
    grids = worst_of_bins(rows, measures, CELLS_DOWN, CELLS_ACROSS, TRAINING)
    within = int(rows.aggregate({"all": "max(iteration - first) + 1"}, [], TRAINING, rows.blocks)["all"].iloc[0])
    # A span that is always 0 has no image.
    panels = [
        (name.strip("()"), heat_map(f"{name.strip('()')}, by rank and iteration", "step_s", grid, _note(grid, within)))
        for name, grid in grids.items()
        if np.nanmax(grid.values, initial=0.0) > 0
    ]
    return choice("measure", panels)


def _note(grid: Grid, within: int) -> str:
    """`within` is the length of a block in iterations."""
    ranks, iterations = grid.largest
    note = "Vertical: ranks. Horizontal: training iterations."
    if max(ranks, iterations) == 1:
        return note
    return (
        f"{note} A cell is the largest of up to {ranks} {'rank' if ranks == 1 else 'ranks'} by {iterations}"
        f" iterations.{f' Its place is known to {within} iterations.' if within > 1 else ''}"
    )


def hooks(costs: pd.DataFrame, all_s: float) -> page.Section:
    """Show calls and seconds of each hook, the costliest first; `all_s` is the time of all iterations."""
    note = (
        "Seconds of all ranks on the host's clock; shares of all iterations' time. Saving between phases is (loop) at"
        " save, and writing in the background is (loop) at write."
    )
    if not len(costs):
        return page.Section("hooks", "Hooks", "No hook was called yet, or perf_stats is off.")
    summary = (
        summarize_hooks(costs, all_s)
        .reset_index()
        .rename(columns={"seconds": "seconds_s", "costliest_rank": "rank"})
        .astype(object)
    )
    summary["each_s"] = summary["seconds_s"] / summary["calls"].clip(lower=1)
    summary["share"] = summary["share"].map(Share)
    columns = ["hook", "event", "calls", "seconds_s", "each_s", "rank", "share"]
    headings = {"seconds_s": "seconds", "each_s": "each call", "rank": "costliest rank", "share": "share of the time"}
    cells = summary[columns].itertuples(index=False, name=None)
    drawn = table("Cost of each hook", columns, cells, headings=headings, class_="sortable shares")
    return page.Section("hooks", "Hooks", drawn, note)
