"""Where the time went: by rank and span, and by rank and iteration."""

from __future__ import annotations

from collections.abc import Collection

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
from orchestrator.stats.insight.gradient_syncs import WAIT
from orchestrator.stats.insight.look import TRAINING
from orchestrator.stats.query import Rows
from orchestrator.stats.spans import SPANS
from orchestrator.stats.summaries import by_span

LAST = ("backward_s", WAIT)
ORDER = (*(name for name in SPANS if name not in LAST), *LAST)
"""From the lowest part of a bar to the highest: the backward pass and the waiting for others come last."""
KINDS = {name: place for place, name in enumerate(ORDER)}
BARS, CELLS_DOWN, CELLS_ACROSS = 64, 96, 200
"""The most bars, and the most cells of a heat map."""


def spans(rows: Rows, reports: Reports) -> page.Section:
    """The spans of each rank, the ranks' iterations, and the speed as reported. `rows` are the run's."""
    recorded = [name for name in ("step_s", *SPANS) if name in rows.columns]
    means = rows.aggregate({name: f"avg({name})" for name in recorded}, ["rank"], TRAINING).dropna(axis=1, how="all")
    if "step_s" not in means:
        return page.Section("time", "Time", "No training iteration was timed.")
    timed = {name: phases for name, phases in metrics_of(reports).items() if name.endswith("_s")}
    speed = [chart(name, phases, reports) for name, phases in timed.items()]
    charts = element("div", *speed, class_="charts") if any(speed) else None
    return page.Section("time", "Time", joined([_stacks(means), _spans(rows.only(TRAINING)), _heat_maps(rows), charts]))


def own_work(columns: Collection[str]) -> str:
    """What a row's rank did by itself, in seconds and SQL: all spans but the one in which it waits for the others, which is
    the backward pass where no span is measured for waiting. The whole iteration where no span is recorded."""
    waiting = WAIT if WAIT in columns else "backward_s"
    spans = [f"coalesce({name}, 0)" for name in SPANS if name in columns and name != waiting]
    return f"({' + '.join(spans) or 'step_s'})"


def _stacks(means: pd.DataFrame) -> Markup:
    spans = [name for name in ORDER if name in means]
    if not spans:
        return page.nothing("Spans were not recorded: the hook perf_stats is off.")
    means = means[spans].set_axis(means.index.map(str))
    note = (
        f"The mean of an iteration, by rank. Ranks wait for the slowest of them in {WAIT}, or in backward_s where that was "
        "not measured; a slow rank is one whose other spans are long."
    )
    if len(means) > BARS:
        groups = grouped(len(means), BARS)
        means = means.loc[means[[name for name in spans if name != (WAIT if WAIT in spans else "backward_s")]].sum(axis=1).groupby(groups).idxmax()]
        sizes = " or ".join(map(str, np.unique(np.bincount(groups))))
        note += f" Of {len(groups):,} ranks a bar stands for {sizes} neighbours: the one with the most work of its own."
    return stacks("Where an iteration's time went", means, KINDS, "rank", note)


def _spans(rows: Rows) -> Markup | None:
    if not {*SPANS} & {*rows.columns}:
        return None
    headings = {
        "span": "span",
        "median_s": "median",
        "p95_s": "95 % are below",
        "seconds_s": "all ranks",
        "rank": "highest median: rank",
        "share": "share of the time",
    }
    found = by_span(rows).reset_index().rename(columns={"seconds": "seconds_s", "worst_rank": "rank"})
    found = found.astype({"rank": "Int64"}).astype(object)
    found["share"] = found["share"].map(Share)
    cells = found[[*headings]].itertuples(index=False, name=None)
    return table("Spans over all ranks and training iterations", [*headings], cells, headings=headings, class_="sortable shares")


def _heat_maps(rows: Rows) -> Markup:
    measures = {"own work": own_work(rows.columns), **{name: name for name in ("step_s", *ORDER) if name in rows.columns}}
    grids = worst_of_bins(rows, measures, CELLS_DOWN, CELLS_ACROSS, TRAINING)
    # A span in which nothing ever happened makes no picture.
    panels = [
        (name, heat_map(f"{name}, by rank and iteration", "step_s", grid, "rank", "iteration", _note(grid)))
        for name, grid in grids.items()
        if np.nanmax(grid.values, initial=0.0) > 0
    ]
    return choice("measure", panels)


def _note(grid: Grid) -> str:
    ranks, iterations = grid.most
    note = "Down: ranks. Across: training iterations."
    if max(ranks, iterations) == 1:
        return note
    return f"{note} A cell is the largest of up to {ranks} {'rank' if ranks == 1 else 'ranks'} by {iterations} iterations."
