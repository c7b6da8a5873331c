"""Time per rank, span, iteration and hook."""

import numpy as np
import pandas as pd

from orchestrator.column_names import SPANS
from orchestrator.doctor.gradient_syncs import WAIT
from orchestrator.report import page
from orchestrator.report.binning import compute_max_per_bin, group_neighbors
from orchestrator.report.charts.heat_maps import draw_heat_maps
from orchestrator.report.charts.stacks import SPAN_COLORS, draw_stacks
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.metrics import Reports, draw_metric, group_metrics
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import OWN_WORK, merge_blocks

MAX_BARS = 64
"""Maximum number of bars."""
MAX_CELLS_DOWN = 96
"""Maximum number of rows of a heat map."""
MAX_CELLS_ACROSS = 200
"""Maximum number of columns of a heat map."""


def render_spans(rows: Rows, reports: Reports) -> page.Section:
    """Render the spans of each rank, heat maps of the iterations, and the reported speed."""
    columns = {
        name: f"{merge_blocks(name, 'total')} / {merge_blocks(name, 'known')}"
        for name in ("step_s", *SPANS)
        if name in rows.columns
    }
    means = rows.aggregate(columns, ["rank"], TRAINING, "blocks").dropna(axis=1, how="all")
    if "step_s" not in means:
        return page.Section("time", "Time", "No training iteration was timed.")
    timed = {name: phases for name, phases in group_metrics(reports).items() if name.endswith("_s")}
    speed = [draw_metric(name, phases, reports) for name, phases in timed.items()]
    charts = element("div", *speed, class_="charts") if any(speed) else None
    content = [_draw_stacks(means), _draw_heat_maps(rows), charts]
    return page.Section("time", "Time", concatenate(content))


def _draw_stacks(means: pd.DataFrame) -> Markup:
    shown = [name for name in SPAN_COLORS if name in means]
    if not shown:
        return page.make_note("Spans were not recorded: the hook perf_stats is off.")
    wait = WAIT if WAIT in shown else "backward_s"
    note = (
        f"Mean iteration of each rank. Ranks wait for the slowest in {wait}; a slow rank has long"
        " other spans."
    )
    means = means[shown]
    if len(means) > MAX_BARS:
        groups = group_neighbors(len(means), MAX_BARS)
        own_work = means.drop(columns=wait, errors="ignore").sum(axis=1)
        note += f" Each bar is the one with the most own work of about {len(means) // MAX_BARS} neighbors."
        means = means.loc[own_work.groupby(groups).idxmax()]
    return draw_stacks("Time per iteration", means, "rank", note)


def _draw_heat_maps(rows: Rows) -> Markup | None:
    measures = [OWN_WORK, *(name for name in ("step_s", *SPAN_COLORS) if name in rows.columns)]
    grids = compute_max_per_bin(rows, measures, MAX_CELLS_DOWN, MAX_CELLS_ACROSS, TRAINING)
    # A span that is always 0 has no map.
    grids = {name: grid for name, grid in grids.items() if np.nanmax(grid, initial=0.0) > 0}
    if not grids:
        return None
    shown = {name.strip("()"): grid for name, grid in grids.items()}
    note = (
        "A cell is the largest value of its ranks and iterations. "
        "The colors end at the 95th percentile of the cells."
    )
    return draw_heat_maps("Seconds by rank and iteration", shown, note)
