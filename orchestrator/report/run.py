"""The page of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.column_names import COSTS
from orchestrator.disk.reports import list_reported_names
from orchestrator.doctor import diagnose_run
from orchestrator.report import page
from orchestrator.report.headline import Tile, make_headline
from orchestrator.report.metrics import find_best_and_last
from orchestrator.report.tables import Quantity
from orchestrator.report.views.best_checkpoint import render_best_checkpoint
from orchestrator.report.views.experiment import render_experiment
from orchestrator.report.views.findings import render_findings
from orchestrator.report.views.hooks import render_hooks
from orchestrator.report.views.learning import render_learning
from orchestrator.report.views.media import Link, render_media
from orchestrator.report.views.memory import render_memory
from orchestrator.report.views.other_columns import render_other_columns
from orchestrator.report.views.time import render_spans
from orchestrator.runs.result import Run
from orchestrator.tables.query import Rows
from orchestrator.tables.row_blocks import merge_blocks

MAX_METRIC_TILES = 4
"""Maximum number of metrics in the headline."""
_PEAKS = {
    "rss_bytes": "peak memory of a process",
    "cuda_peak_allocated_bytes": "peak memory of a device",
}


def outline_run(run: Run, link: Link | None = None) -> page.Page:
    """Read what the page of a run shows. `link` returns the address of an image, which the page
    holds otherwise."""
    metadata = run.folder.read_metadata()
    reports = run.reports()
    modes = run.modes
    rows = run.rows()
    hook_costs = run.hook_costs
    by_rank = _read_costs_of_ranks(rows)
    all_s = float(by_rank["step_s"].sum()) if "step_s" in by_rank else math.nan
    sections = [
        render_findings(diagnose_run(run.folder, rows, hook_costs), str(run.folder)),
        render_best_checkpoint(run.folder, run.best),
        render_learning(rows, reports, modes),
        *render_media(run.folder, link),
        render_spans(rows, reports),
        render_memory(rows),
        render_hooks(hook_costs, all_s),
        render_other_columns(rows),
        render_experiment(run.folder.read_experiment_text(), metadata, run.folder.read_attempts()),
    ]
    tiles = [*_make_metric_tiles(reports, modes), *_make_cost_tiles(by_rank)]
    header = make_headline(run.name, run.status, metadata, tiles)
    return page.Page(run.name, header, sections)


def _read_costs_of_ranks(rows: Rows) -> pd.DataFrame:
    """Return the number of rows, the time and the peak memory of each rank."""
    columns = {"rows": "sum(rows)::bigint"}
    if "step_s" in rows.columns:
        columns["step_s"] = merge_blocks("step_s", "total")
    peaks = [name for name in _PEAKS if name in rows.columns]
    columns |= {name: merge_blocks(name, "high") for name in peaks}
    return rows.aggregate(columns, ["rank"], table="blocks")


def _make_metric_tiles(
    reports: Sequence[Mapping[str, Any]], modes: Mapping[str, str]
) -> list[Tile]:
    """Make tiles of the metrics' best values, or last ones if unknown: metrics of val and test if
    there are any."""
    names = [name for name in list_reported_names(reports) if not name.endswith(COSTS)]
    evaluated = [name for name in names if name.startswith(("val/", "test/"))]
    shown = evaluated or [name for name in names if name.startswith("train/")]
    tiles = []
    for name, best, last in find_best_and_last(shown, reports, modes):
        report = best or last
        title = f"best {name}" if best else f"last {name}"
        note = f"epoch {units.number_epoch(report.get('epoch', 0))}, step {report.get('step')}"
        tiles.append(Tile(title, Quantity(name, report[name]), note))
    return tiles[:MAX_METRIC_TILES]


def _make_cost_tiles(by_rank: pd.DataFrame) -> list[Tile]:
    tiles: list[Tile] = []
    if not len(by_rank):
        return tiles
    if "step_s" in by_rank:
        ranks = units.format_count(len(by_rank), "rank")
        iterations = units.format_count(int(by_rank["rows"].sum()), "iteration")
        note = f"in {iterations} of {ranks}"
        tiles.append(Tile("rank-seconds", Quantity("", float(by_rank["step_s"].sum())), note))
    for name, title in _PEAKS.items():
        if name in by_rank and by_rank[name].notna().any():
            peak = Quantity(name, float(by_rank[name].max()))
            tiles.append(Tile(title, peak, f"rank {by_rank[name].idxmax()}"))
    return tiles
