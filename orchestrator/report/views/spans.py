"""Where the time went: by rank and span, and by rank and iteration."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.report import page
from orchestrator.report.binning import Grid, grouped, worst_of_bins
from orchestrator.report.charts.frame import choice
from orchestrator.report.charts.heat import heat_map
from orchestrator.report.charts.stacks import stacks
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.tables import Share, table
from orchestrator.report.views.learning import Reports, chart, metrics_of
from orchestrator.stats.aggregate.blocks import OWN_WORK, known, total
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.aggregate.summaries import summarize_spans
from orchestrator.stats.insight.gradient_syncs import WAIT
from orchestrator.stats.insight.iteration_sample import IterationSample
from orchestrator.stats.read.query import TRAINING, Rows

LAST = ("backward_s", WAIT)
ORDER = (*(name for name in SPANS if name not in LAST), *LAST)
"""From the lowest part of a bar to the highest: the backward pass and the waiting for others come last."""
KINDS = {name: place for place, name in enumerate(ORDER)}
BARS, CELLS_DOWN, CELLS_ACROSS = 64, 96, 200
"""The most bars, and the most cells of a heat map."""


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
        return page.nothing("Spans were not recorded: the hook perf_stats is off.")
    means = means[spans].set_axis(means.index.map(str))
    note = (
        f"The mean of an iteration, by rank. Ranks wait for the slowest of them in {WAIT}, or in backward_s where that"
        " was not measured; a slow rank is one whose other spans are long."
    )
    if len(means) > BARS:
        groups = grouped(len(means), BARS)
        means = means.loc[
            means[[name for name in spans if name != (WAIT if WAIT in spans else "backward_s")]]
            .sum(axis=1)
            .groupby(groups)
            .idxmax()
        ]
        sizes = " or ".join(map(str, np.unique(np.bincount(groups))))
        note += f" Of {len(groups):,} ranks a bar stands for {sizes} neighbours: the one with the most work of its own."
    return stacks("Time per iteration", means, KINDS, "rank", note)


def _spans(sample: IterationSample, seconds: pd.Series[float]) -> Markup | None:
    """`seconds` are those of each span on all ranks."""
    if not {*SPANS} & {*seconds.index}:
        return None
    headings = {
        "span": "span",
        "median_s": "median",
        "p95_s": "95 % are below",
        "seconds_s": "all ranks",
        "rank": "highest median: rank",
        "share": "share of the time",
    }
    found = summarize_spans(Rows.of(sample.typical))
    found["seconds"] = seconds[found.index]
    found["share"] = found["seconds"] / seconds["step_s"]
    found = (
        found.sort_values("seconds", ascending=False)
        .reset_index()
        .rename(columns={"seconds": "seconds_s", "worst_rank": "rank"})
    )
    found = found.astype({"rank": "Int64"}).astype(object)
    found["share"] = found["share"].map(Share)
    cells = found[[*headings]].itertuples(index=False, name=None)
    drawn = table(
        "Spans over all ranks and training iterations", [*headings], cells, headings=headings, class_="sortable shares"
    )
    if not sample.stretches:
        return drawn
    seen = (
        f"Medians, what 95 % are below and the rank are those of {len(sample.typical):,} rows, in"
        f" {len(sample.stretches)} stretches evenly over the run."
    )
    return joined([drawn, page.nothing(seen)])


def _heat_maps(rows: Rows) -> Markup:
    measures = [OWN_WORK, *(name for name in ("step_s", *ORDER) if name in rows.columns)]
    grids = worst_of_bins(rows, measures, CELLS_DOWN, CELLS_ACROSS, TRAINING)
    within = int(rows.aggregate({"all": "max(iteration - first) + 1"}, [], TRAINING, rows.blocks)["all"].iloc[0])
    # A span in which nothing ever happened makes no picture.
    panels = [
        (name.strip("()"), heat_map(f"{name.strip('()')}, by rank and iteration", "step_s", grid, _note(grid, within)))
        for name, grid in grids.items()
        if np.nanmax(grid.values, initial=0.0) > 0
    ]
    return choice("measure", panels)


def _note(grid: Grid, within: int) -> str:
    """`within` so many iterations it is known where a value lies."""
    ranks, iterations = grid.most
    note = "Down: ranks. Across: training iterations."
    if max(ranks, iterations) == 1:
        return note
    return (
        f"{note} A cell is the largest of up to {ranks} {'rank' if ranks == 1 else 'ranks'} by {iterations}"
        f" iterations.{f' Where it lies is told to within {within}.' if within > 1 else ''}"
    )
